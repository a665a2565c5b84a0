//! Curves of a run as an SVG picture: one panel a quantity, all over the same steps.

use std::fmt::Write as _;

/// A curve with its name.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    /// What is drawn.
    pub title: String,
    /// Step and value, in the order of the steps.
    pub points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 200.0;
/// Room for the numbers on the left and below.
const LEFT: f64 = 80.0;
const BELOW: f64 = 30.0;
const ABOVE: f64 = 28.0;
const RIGHT: f64 = 20.0;

/// Draws the panels below each other. Panels without a finite point are left out; `None` if none is left.
pub fn svg(panels: &[Panel]) -> Option<String> {
    let panels: Vec<(&str, Vec<(f64, f64)>)> = panels
        .iter()
        .map(|panel| {
            let finite = |&(x, y): &(f64, f64)| x.is_finite() && y.is_finite();
            (&*panel.title, panel.points.iter().copied().filter(finite).collect())
        })
        .filter(|(_, points): &(_, Vec<_>)| !points.is_empty())
        .collect();
    let all = || panels.iter().flat_map(|(_, points)| points);
    let last = all().map(|p| p.0).reduce(f64::max)?;
    let steps = ticks(0.0, last.max(1.0));
    let mut out = String::new();
    let height = HEIGHT * panels.len() as f64;
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>"
    );
    for (index, (title, points)) in panels.iter().enumerate() {
        draw(&mut out, title, points, &steps, HEIGHT * index as f64);
    }
    out.push_str("</svg>\n");
    Some(out)
}

fn draw(out: &mut String, title: &str, points: &[(f64, f64)], steps: &[f64], top: f64) {
    let low = points.iter().map(|p| p.1).fold(f64::INFINITY, f64::min);
    let high = points.iter().map(|p| p.1).fold(f64::NEG_INFINITY, f64::max);
    // A constant curve runs in the middle of its panel.
    let (low, high) = if high > low {
        (low, high)
    } else {
        let room = if low == 0.0 { 1.0 } else { low.abs() / 2.0 };
        (low - room, high + room)
    };
    let values = ticks(low, high);
    let end = |ticks: &[f64], at: usize| ticks.get(at).copied().unwrap_or_default();
    let (first, last) = (end(&values, 0), end(&values, values.len() - 1));
    let widest = end(steps, steps.len() - 1);
    let x = |step: f64| LEFT + step / widest * (WIDTH - LEFT - RIGHT);
    let (roof, floor) = (top + ABOVE, top + HEIGHT - BELOW);
    let y = |value: f64| floor - (value - first) / (last - first) * (floor - roof);

    let _ = writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"{:.1}\" font-weight=\"bold\">{}</text>",
        top + 16.0,
        escaped(title)
    );
    for &value in &values {
        let at = y(value);
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT} {at:.1}H{}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
            number(value)
        );
    }
    for &step in steps {
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            x(step),
            floor + 16.0,
            number(step)
        );
    }
    let line: Vec<_> = points
        .iter()
        .map(|&(step, value)| format!("{:.1},{:.1}", x(step), y(value)))
        .collect();
    let _ = writeln!(
        out,
        "<polyline fill=\"none\" stroke=\"#1b6ca8\" stroke-width=\"1.5\" points=\"{}\"/>",
        line.join(" ")
    );
    if let [(step, value)] = points {
        let _ = writeln!(
            out,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"#1b6ca8\"/>",
            x(*step),
            y(*value)
        );
    }
}

/// Four to eleven round numbers from at most `low` to at least `high`, which is above it.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let rough = (high - low) / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let unit = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .find(|unit| unit * power >= rough)
        .unwrap_or(10.0)
        * power;
    let (first, last) = ((low / unit).floor() as i64, (high / unit).ceil() as i64);
    (first..=last.max(first + 1)).map(|n| n as f64 * unit).collect()
}

/// At most six digits, without trailing zeros.
fn number(value: f64) -> String {
    if value != 0.0 && !(1e-3..1e7).contains(&value.abs()) {
        let text = format!("{value:.2e}");
        return text.replace(".00e", "e").replace("0e", "e");
    }
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(title: &str, points: &[(f64, f64)]) -> Panel {
        Panel {
            title: title.into(),
            points: points.to_vec(),
        }
    }

    #[test]
    fn ticks_are_round_and_enclose() {
        assert_eq!(ticks(0.0, 1000.0), [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0]);
        assert_eq!(ticks(0.0, 1.0).len(), 6);
        for (low, high) in [(0.0, 7.0), (-3.2, 11.9), (1e-7, 5e-5), (1e9, 1e9 + 1.0), (0.3, 0.30001)] {
            let ticks = ticks(low, high);
            let slack = 1e-12 * high.abs();
            assert!((2..=12).contains(&ticks.len()), "{low} {high}: {ticks:?}");
            assert!(
                ticks[0] <= low + slack && ticks[ticks.len() - 1] >= high - slack,
                "{low} {high}: {ticks:?}"
            );
        }
    }

    #[test]
    fn numbers_are_short() {
        for (value, expected) in [
            (0.0, "0"),
            (0.25, "0.25"),
            (2000.0, "2000"),
            (5e-5, "5e-5"),
            (1.25e-5, "1.25e-5"),
        ] {
            assert_eq!(number(value), expected);
        }
    }

    #[test]
    fn curves_stay_inside_their_panels() {
        let picture = svg(&[
            panel("loss", &[(10.0, 4.0), (20.0, 2.0), (30.0, f64::NAN), (40.0, 1.0)]),
            panel("nothing", &[(1.0, f64::INFINITY)]),
            panel("f1 < 100 & more", &[(40.0, 81.5)]),
            panel("flat", &[(0.0, 0.0), (40.0, 0.0)]),
        ])
        .unwrap();
        assert_eq!(picture.matches("<polyline").count(), 3);
        assert!(picture.contains("f1 &lt; 100 &amp; more") && !picture.contains("nothing") && !picture.contains("NaN"));
        assert!(picture.contains("height=\"600\"") && picture.ends_with("</svg>\n"));
        let curves = picture
            .split("points=\"")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap());
        for (index, curve) in curves.enumerate() {
            for point in curve.split(' ') {
                let (x, y) = point.split_once(',').unwrap();
                let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
                let top = HEIGHT * index as f64;
                assert!((LEFT..=WIDTH - RIGHT).contains(&x), "{point}");
                assert!((top + ABOVE..=top + HEIGHT - BELOW).contains(&y), "{point}");
            }
        }
        assert_eq!(svg(&[]), None);
        assert_eq!(svg(&[panel("nothing", &[])]), None);
    }
}
