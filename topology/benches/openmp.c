// An empty parallel region of OpenMP: the fork-join that the team is compared with.
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(void) {
    enum { SAMPLES = 31, ROUNDS = 1000 };
    double samples[SAMPLES];
    volatile int sink[1024];
    for (int sample = 0; sample < SAMPLES; sample++) {
        double start = omp_get_wtime();
        for (int round = 0; round < ROUNDS; round++) {
#pragma omp parallel
            sink[omp_get_thread_num() * 16 % 1024] = round;
        }
        samples[sample] = (omp_get_wtime() - start) / ROUNDS * 1e6;
    }
    qsort(samples, SAMPLES, sizeof samples[0], ascending);
    printf("fork-join, %d threads: OpenMP %.2f us\n", omp_get_max_threads(), samples[SAMPLES / 2]);
    return 0;
}
