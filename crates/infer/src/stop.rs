//! Finds stop strings across token borders.

/// The result of [`StopMatcher::push`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Match {
    /// No stop string so far.
    None,
    /// A stop string ended here. The text before it has been yielded; nothing after it will be.
    Stopped,
}

/// Cuts a text before the first occurrence of any stop string. Holds back only the end of the text
/// that may still become one.
#[derive(Debug, Clone, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    /// Index of the stop string that ended the text.
    found: Option<usize>,
}

impl StopMatcher {
    /// Creates a matcher for `stops`; empty strings are ignored.
    pub fn new(mut stops: Vec<String>) -> Self {
        stops.retain(|stop| !stop.is_empty());
        Self { stops, held: String::new(), found: None }
    }

    /// Processes `fresh` text and appends to `out` as much as can be shown.
    pub fn push(&mut self, fresh: &str, out: &mut String) -> Match {
        if self.stops.is_empty() {
            out.push_str(fresh);
            return Match::None;
        }
        self.held.push_str(fresh);
        if let Some((at, which)) = self.first_match() {
            out.push_str(&self.held[..at]);
            self.held.clear();
            self.found = Some(which);
            return Match::Stopped;
        }
        // `held` is searched whole each time. It stays shorter than the longest stop string plus
        // one token, so no state between pushes is worth keeping.
        let safe = self.held.len() - self.possible_start();
        out.extend(self.held.drain(..safe));
        Match::None
    }

    /// Ends the text: the held-back end did not become a stop string.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }

    /// Returns true if the end of the text is held back, because it may become a stop string.
    pub fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// The stop string that ended the text.
    pub fn found(&self) -> Option<&str> {
        self.found.map(|which| self.stops[which].as_str())
    }

    /// Returns the start of the first stop string, and its index.
    fn first_match(&self) -> Option<(usize, usize)> {
        let places = self.stops.iter().enumerate();
        places.filter_map(|(which, stop)| Some((self.held.find(stop.as_str())?, which))).min()
    }

    /// Length in bytes of the longest end of `held` that begins a stop string.
    fn possible_start(&self) -> usize {
        let held = self.held.as_bytes();
        let overlap = |stop: &String| {
            // A whole stop string would have matched, so at most all but its last byte. Bytes
            // are compared; a match ends at a character's border because both are UTF-8.
            let longest = held.len().min(stop.len() - 1);
            (1..=longest).rev().find(|&n| held.ends_with(&stop.as_bytes()[..n])).unwrap_or(0)
        };
        self.stops.iter().map(overlap).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Match) {
        let mut matcher = StopMatcher::new(stops.iter().map(|s| (*s).to_owned()).collect());
        let mut out = String::new();
        for piece in pieces {
            if matcher.push(piece, &mut out) == Match::Stopped {
                return (out, Match::Stopped);
            }
        }
        matcher.finish(&mut out);
        (out, Match::None)
    }

    #[test]
    fn cuts_across_token_borders() {
        assert_eq!(run(&["END"], &["the E", "N", "D is"]), ("the ".into(), Match::Stopped));
        assert_eq!(run(&["END"], &["the E", "NTRY"]), ("the ENTRY".into(), Match::None));
        assert_eq!(run(&["é!"], &["caf", "é", "?"]), ("café?".into(), Match::None));
    }

    #[test]
    fn the_earliest_of_several_wins() {
        assert_eq!(run(&["c", "b"], &["abc"]), ("a".into(), Match::Stopped));
    }

    #[test]
    fn the_matcher_knows_which_one_it_found() {
        let found = |pieces: &[&str]| {
            let mut matcher = StopMatcher::new(vec![String::new(), "END".into(), "b".into()]);
            for piece in pieces {
                let _ = matcher.push(piece, &mut String::new());
            }
            matcher.found().map(str::to_owned)
        };
        assert_eq!(found(&["the E", "ND"]).as_deref(), Some("END"));
        assert_eq!(found(&["abEND"]).as_deref(), Some("b"));
        assert_eq!(found(&["EN"]), None);
    }

    proptest! {
        #[test]
        fn equals_a_search_in_the_whole_text(
            pieces in prop::collection::vec("[abé]{0,3}", 0..12),
            stops in prop::collection::vec("[abé]{1,3}", 1..3),
        ) {
            let whole = pieces.concat();
            // The first piece that completes a stop string decides, so the earliest *end* wins
            // and among those the earliest start: the same as scanning growing prefixes.
            let mut expected = (whole.clone(), Match::None);
            let mut grown = String::new();
            for piece in &pieces {
                grown.push_str(piece);
                if let Some(at) = stops.iter().filter_map(|s| grown.find(s.as_str())).min() {
                    expected = (grown[..at].to_owned(), Match::Stopped);
                    break;
                }
            }
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            prop_assert_eq!(run(&stops, &pieces), expected);
        }
    }
}
