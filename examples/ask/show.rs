//! An answer on a line of the terminal: confidence, then the answer, marked, in its surroundings.

use std::io::IsTerminal as _;

use crate::answerer::Found;

/// How the answer is marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// In bold and colour.
    Colour,
    /// Between brackets.
    Plain,
}

impl Style {
    /// Colour where standard output is a terminal and `NO_COLOR` is not set.
    pub(crate) fn of_terminal() -> Style {
        let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        if colour { Style::Colour } else { Style::Plain }
    }
}

/// Code points shown on each side of an answer.
const AROUND: usize = 60;

/// ` 93.1 %  ... lifts [nine tons]; the red one ...`
pub(crate) fn line(text: &str, answer: &Found, style: Style) -> String {
    let confidence = format!("{:5.1} %  ", 100.0 * answer.confidence);
    let Some((from, to)) = answer.place else {
        return confidence + "(no answer)";
    };
    let chars: Vec<char> = text.chars().collect();
    let (from, to) = (from.min(chars.len()), to.min(chars.len()));
    let (first, last) = (from.saturating_sub(AROUND), (to + AROUND).min(chars.len()));
    let piece = |range: std::ops::Range<usize>| -> String { chars[range].iter().map(|&c| visible(c)).collect() };
    let (before, after) = (piece(first..from), piece(to..last));
    // Words at the edges are shown whole or not at all.
    let before = match (first > 0, before.find(' ')) {
        (false, _) => before,
        (true, Some(cut)) => format!("...{}", &before[cut..]),
        (true, None) => "...".to_owned() + &before,
    };
    let after = match (last < chars.len(), after.rfind(' ')) {
        (false, _) => after,
        (true, Some(cut)) => format!("{}...", &after[..=cut]),
        (true, None) => after + "...",
    };
    let (open, close) = match style {
        Style::Colour => ("\x1b[1;32m", "\x1b[0m"),
        Style::Plain => ("[", "]"),
    };
    format!("{confidence}{before}{open}{}{close}{after}", piece(from..to))
}

/// Line ends become blanks, and control characters of a text do nothing to the terminal.
fn visible(c: char) -> char {
    match c {
        '\n' | '\r' | '\t' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(from: usize, to: usize) -> Found {
        Found {
            text: "x".into(),
            confidence: 0.9312,
            place: Some((from, to)),
        }
    }

    #[test]
    fn the_answer_is_marked_in_its_surroundings() {
        let text = "Zoë's crane lifts\nnine\x1btons.";
        assert_eq!(
            line(text, &found(12, 17), Style::Plain),
            " 93.1 %  Zoë's crane [lifts] nine\u{fffd}tons."
        );
        assert_eq!(
            line(text, &found(0, 5), Style::Colour),
            " 93.1 %  \x1b[1;32mZoë's\x1b[0m crane lifts nine\u{fffd}tons."
        );
    }

    #[test]
    fn long_surroundings_are_cut_between_words() {
        let text = format!("{}answer {}", "before ".repeat(20), "after ".repeat(20));
        let shown = line(&text, &found(140, 146), Style::Plain);
        assert!(shown.starts_with(" 93.1 %  ... before before"), "{shown}");
        assert!(
            shown.contains(" before [answer] after ") && shown.ends_with("after ..."),
            "{shown}"
        );
    }

    #[test]
    fn no_answer_and_places_outside_are_shown_without_a_panic() {
        let none = Found {
            text: String::new(),
            confidence: 0.5,
            place: None,
        };
        assert_eq!(line("text", &none, Style::Plain), " 50.0 %  (no answer)");
        assert_eq!(line("text", &found(9, 12), Style::Plain), " 93.1 %  text[]");
    }
}
