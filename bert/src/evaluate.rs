//! Evaluation over all ranks: every window is computed once, by one rank, and its best starts and ends go to rank 0.
//!
//! Windows are sorted by length and dealt out in turn, so that ranks finish together and a batch has windows of one
//! length. A window's logits do not depend on the others of its batch, so neither do the answers depend on the number of
//! ranks or on the batch size.

use azulejo_amx::Executor;
use azulejo_collectives::Communicator;

use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::features::Feature;
use crate::model::{Logits, Model};
use crate::squad::postprocess::Candidates;

/// Computes the candidates of all windows. Rank 0 gets them in the order of `features`, the others get `None`. All ranks
/// call it with the same arguments; `done` is told how many windows this rank has finished, of how many.
pub fn candidates(
    exec: &dyn Executor,
    comm: &Communicator,
    model: &Model,
    features: &[Feature],
    batch_size: usize,
    n_best: usize,
    done: &mut dyn FnMut(usize, usize),
) -> Result<Option<Vec<Candidates>>> {
    let mut order: Vec<usize> = (0..features.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(features[i].len()));
    let mine: Vec<usize> = order.into_iter().skip(comm.rank()).step_by(comm.world_size()).collect();
    let mut message = Vec::new();
    let mut batch = Batch::new();
    let mut logits = Logits::default();
    let mut finished = 0;
    for chunk in mine.chunks(batch_size.max(1)) {
        batch.clear();
        for &i in chunk {
            batch.push(&features[i].ids, &features[i].token_types, 0, 0, i as u64);
        }
        model.forward_into(exec, &batch, &mut logits)?;
        for (&i, tokens) in chunk.iter().zip(batch.ranges()) {
            let found = Candidates::new(&logits.start[tokens.clone()], &logits.end[tokens], n_best);
            write(&mut message, i, &found);
        }
        finished += chunk.len();
        done(finished, mine.len());
    }
    let Some(messages) = comm.gather_bytes(&message, 0)? else {
        return Ok(None);
    };
    let mut all: Vec<Option<Candidates>> = vec![None; features.len()];
    for message in messages {
        let mut words = message
            .chunks_exact(4)
            .map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]));
        while let Some(index) = words.next() {
            let found = read(&mut words);
            let place = all.get_mut(index as usize);
            match (place, found) {
                (Some(place), Some(found)) => *place = Some(found),
                _ => {
                    return Err(Error::Batch {
                        reason: format!("candidates of window {index} came incomplete"),
                    });
                }
            }
        }
    }
    let missing = all.iter().filter(|found| found.is_none()).count();
    let found: Option<Vec<Candidates>> = all.into_iter().collect();
    match found {
        Some(found) => Ok(Some(found)),
        None => Err(Error::Length {
            what: "evaluated windows",
            expected: features.len(),
            got: features.len() - missing,
        }),
    }
}

/// One window in 32-bit words: its index, its starts, its ends, the null logits.
fn write(message: &mut Vec<u8>, index: usize, found: &Candidates) {
    let mut word = |w: u32| message.extend(w.to_le_bytes());
    word(index as u32);
    for list in [&found.starts, &found.ends] {
        word(list.len() as u32);
        for &(token, logit) in list {
            word(token);
            word(logit.to_bits());
        }
    }
    word(found.null.0.to_bits());
    word(found.null.1.to_bits());
}

fn read(words: &mut impl Iterator<Item = u32>) -> Option<Candidates> {
    let mut list = || -> Option<Vec<(u32, f32)>> {
        let len = words.next()?;
        (0..len)
            .map(|_| Some((words.next()?, f32::from_bits(words.next()?))))
            .collect()
    };
    let (starts, ends) = (list()?, list()?);
    let null = (f32::from_bits(words.next()?), f32::from_bits(words.next()?));
    Some(Candidates { starts, ends, null })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::params::Head;
    use crate::precision::Precision;
    use azulejo_amx::Serial;
    use azulejo_collectives::threads;

    #[test]
    fn the_number_of_ranks_and_the_batch_size_change_no_bit() {
        let config = Config::bert(97, 48, 2, 3, 100).unwrap();
        let features: Vec<Feature> = (0..23usize)
            .map(|i| Feature {
                ids: (0..5 + (i * 7) % 19)
                    .map(|k| 5 + ((i * 31 + k * 17) % 90) as u32)
                    .collect(),
                token_types: vec![0; 5 + (i * 7) % 19],
                offsets: vec![None; 5 + (i * 7) % 19],
                example: i,
                start: 0,
                end: 0,
            })
            .collect();
        let run = |world: usize, batch_size: usize| {
            std::thread::scope(|scope| {
                let ranks: Vec<_> = threads(world)
                    .unwrap()
                    .into_iter()
                    .map(|comm| {
                        let (config, features) = (config.clone(), &features);
                        scope.spawn(move || {
                            let mut model = Model::new(config, Head::QuestionAnswering, Precision::Bf16).unwrap();
                            let weights = model.params().initialise(model.config(), 3);
                            model.update(&Serial, |to| to.copy_from_slice(&weights)).unwrap();
                            candidates(&Serial, &comm, &model, features, batch_size, 20, &mut |_, _| {}).unwrap()
                        })
                    })
                    .collect();
                let mut results: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
                assert!(
                    results[1..].iter().all(Option::is_none),
                    "only rank 0 gets the candidates"
                );
                results.remove(0).unwrap()
            })
        };
        let expected = run(1, 8);
        assert_eq!(expected.len(), features.len());
        assert_eq!(expected, run(3, 8));
        assert_eq!(expected, run(4, 1));
    }
}
