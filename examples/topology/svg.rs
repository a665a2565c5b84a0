//! The machine as a picture: a box for each package, in it its nodes, caches and cores, in each core its CPUs.

use azulejo_topology::{Core, CpuSet, Machine};

use crate::draw::cache_name;

/// Sizes in the picture's units.
const CPU: usize = 44;
const LINE: usize = 22;
const GAP: usize = 6;
/// Cores beside each other in a package.
const COLUMNS: usize = 8;

/// The picture's text.
pub(crate) fn picture(machine: &Machine) -> String {
    let mut body = String::new();
    let (mut y, mut width) = (GAP, 0);
    for (index, package) in machine.packages.iter().enumerate() {
        let cores: Vec<&Core> = machine.cores.iter().filter(|core| core.package == index).collect();
        let threads = cores.iter().map(|core| core.cpus.len()).max().unwrap_or(1);
        let core_width = threads * CPU + GAP;
        let columns = cores.len().clamp(1, COLUMNS);
        let inner = columns * (core_width + GAP) + GAP;
        let mut labels = vec![format!(
            "package{}",
            package.id.map_or_else(String::new, |id| format!(" {id}"))
        )];
        let nodes = machine.nodes.iter().filter(|node| package.nodes.contains(node.id));
        labels.extend(nodes.map(|node| node.to_string()));
        let caches = machine
            .caches
            .iter()
            .filter(|cache| cache.level >= 3 && cache.cpus.intersects(&package.cpus));
        labels.extend(caches.map(|cache| format!("{}: CPUs {}", cache_name(cache), cache.cpus)));
        // Seven units a letter is about what the font takes.
        let widest = labels.iter().map(|label| label.len() * 7 + 2 * GAP).max().unwrap_or(0);
        let box_width = inner.max(widest);
        let rows = cores.len().div_ceil(columns);
        let height = labels.len() * LINE + rows * (CPU + GAP) + 2 * GAP;
        body.push_str(&rectangle(GAP, y, box_width, height, "#f4f4f0"));
        for (line, label) in labels.iter().enumerate() {
            body.push_str(&words(2 * GAP, y + (line + 1) * LINE - GAP, label));
        }
        let top = y + labels.len() * LINE + GAP;
        for (at, core) in cores.iter().enumerate() {
            let (x, y) = (
                2 * GAP + at % columns * (core_width + GAP),
                top + at / columns * (CPU + GAP),
            );
            body.push_str(&rectangle(x, y, core_width, CPU, colour(machine, &core.cpus)));
            for (thread, cpu) in core.cpus.iter().enumerate() {
                let free = machine.allowed.contains(cpu);
                body.push_str(&rectangle(
                    x + GAP / 2 + thread * CPU,
                    y + GAP / 2,
                    CPU,
                    CPU - GAP,
                    if free { "#ffffff" } else { "#c8c8c8" },
                ));
                body.push_str(&words(x + GAP + thread * CPU + 4, y + CPU / 2 + 4, &cpu.to_string()));
            }
        }
        y += height + GAP;
        width = width.max(box_width + 2 * GAP);
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{y}\" viewBox=\"0 0 {width} {y}\" \
         font-family=\"monospace\" font-size=\"12\">\n{body}</svg>\n"
    )
}

/// Cores of a slower kind are shown in another colour.
fn colour(machine: &Machine, core: &CpuSet) -> &'static str {
    match machine.performance_cpus() {
        Some(fast) if !core.intersects(fast) => "#b9d7a8",
        _ => "#9fc2e8",
    }
}

fn rectangle(x: usize, y: usize, width: usize, height: usize, fill: &str) -> String {
    format!("<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{fill}\" stroke=\"#404040\"/>\n")
}

fn words(x: usize, y: usize, text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    format!("<text x=\"{x}\" y=\"{y}\">{text}</text>\n")
}
