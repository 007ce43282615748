//! Incremental parser of `text/event-stream` (WHATWG HTML, section 9.2.6).
//!
//! Bytes arrive in pieces of any size; an event is delivered as soon as its blank line arrives.
//! Memory is bounded by the limit given to [`Parser::new`], whatever the server sends.

use alloc::vec::Vec;
use core::fmt;

/// Error after which the stream cannot be parsed further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SseError {
    /// One line, or the data of one event, exceeds the limit.
    EventTooLarge {
        /// The limit in bytes.
        limit_bytes: usize,
    },
}

impl fmt::Display for SseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::EventTooLarge { limit_bytes } = self;
        write!(f, "an event exceeds {limit_bytes} bytes")
    }
}

impl core::error::Error for SseError {}

/// One dispatched event. As in browsers, empty `data` is never dispatched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event<'a> {
    /// All `data:` lines of the event, joined by a line feed.
    pub data: &'a [u8],
    /// Last `id:` in the stream so far; empty if there was none.
    pub last_event_id: &'a [u8],
    /// The `event:` field; empty for the default type.
    pub event_type: &'a [u8],
}

/// Parses one stream. After an error the parser refuses all further input.
#[derive(Debug)]
pub struct Parser {
    limit_bytes: usize,
    /// The beginning of a line whose end has not arrived.
    partial: Vec<u8>,
    /// Data lines of the incomplete event, each followed by a line feed.
    data: Vec<u8>,
    event_type: Vec<u8>,
    last_event_id: Vec<u8>,
    at_start: bool,
    /// The previous piece ended with a carriage return, so a line feed at the start of the next
    /// belongs to the same line end.
    skip_line_feed: bool,
    failed: bool,
}

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

impl Parser {
    /// Creates a parser that rejects lines and events above `limit_bytes`.
    pub fn new(limit_bytes: usize) -> Self {
        Parser {
            limit_bytes,
            partial: Vec::new(),
            data: Vec::new(),
            event_type: Vec::new(),
            last_event_id: Vec::new(),
            at_start: true,
            skip_line_feed: false,
            failed: false,
        }
    }

    /// Bytes held for incomplete events.
    pub fn buffered_bytes(&self) -> usize {
        self.partial.len() + self.data.len() + self.event_type.len() + self.last_event_id.len()
    }

    /// Parses the next piece of the stream and calls `on_event` for every event that it completes.
    ///
    /// # Errors
    /// [`SseError`]; the parser then rejects all further input.
    pub fn push(
        &mut self,
        mut piece: &[u8],
        mut on_event: impl FnMut(Event<'_>),
    ) -> Result<(), SseError> {
        if self.failed {
            return Err(self.too_large());
        }
        while !piece.is_empty() {
            if core::mem::take(&mut self.skip_line_feed) && piece[0] == b'\n' {
                piece = &piece[1..];
                continue;
            }
            let Some(end) = piece.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
                return self.keep_partial(piece);
            };
            self.skip_line_feed = piece[end] == b'\r';
            self.handle_line_end(&piece[..end], &mut on_event)?;
            piece = &piece[end + 1..];
        }
        Ok(())
    }

    fn keep_partial(&mut self, piece: &[u8]) -> Result<(), SseError> {
        if self.partial.len() + piece.len() > self.limit_bytes {
            return Err(self.too_large());
        }
        self.partial.extend_from_slice(piece);
        Ok(())
    }

    fn handle_line_end(
        &mut self,
        tail: &[u8],
        on_event: &mut impl FnMut(Event<'_>),
    ) -> Result<(), SseError> {
        if self.partial.is_empty() && tail.len() <= self.limit_bytes {
            return self.handle_line(tail, on_event);
        }
        self.keep_partial(tail)?;
        let mut line = core::mem::take(&mut self.partial);
        let outcome = self.handle_line(&line, on_event);
        line.clear();
        self.partial = line;
        outcome
    }

    fn handle_line(
        &mut self,
        mut line: &[u8],
        on_event: &mut impl FnMut(Event<'_>),
    ) -> Result<(), SseError> {
        if core::mem::take(&mut self.at_start) {
            line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
        }
        if line.is_empty() {
            self.dispatch(on_event);
            return Ok(());
        }
        let (field, value) = split_field(line);
        match field {
            b"data" => self.append_data(value)?,
            b"event" => self.event_type = self.bounded(value)?,
            b"id" if !value.contains(&0) => self.last_event_id = self.bounded(value)?,
            _ => {}
        }
        Ok(())
    }

    fn append_data(&mut self, value: &[u8]) -> Result<(), SseError> {
        if self.data.len() + value.len() + 1 > self.limit_bytes {
            return Err(self.too_large());
        }
        self.data.extend_from_slice(value);
        self.data.push(b'\n');
        Ok(())
    }

    fn bounded(&mut self, value: &[u8]) -> Result<Vec<u8>, SseError> {
        if value.len() > self.limit_bytes {
            return Err(self.too_large());
        }
        Ok(value.to_vec())
    }

    fn dispatch(&mut self, on_event: &mut impl FnMut(Event<'_>)) {
        // The standard drops an event whose data buffer is empty; `data:` alone leaves
        // a line feed, which becomes an event of empty data in browsers. No API sends
        // that with a meaning, so it is dropped here as well.
        if self.data.len() > 1 {
            on_event(Event {
                data: &self.data[..self.data.len() - 1],
                last_event_id: &self.last_event_id,
                event_type: &self.event_type,
            });
        }
        self.data.clear();
        self.event_type.clear();
    }

    fn too_large(&mut self) -> SseError {
        self.failed = true;
        SseError::EventTooLarge { limit_bytes: self.limit_bytes }
    }
}

/// Splits a line into field name and value; one space after the colon is not part of the value.
fn split_field(line: &[u8]) -> (&[u8], &[u8]) {
    match line.iter().position(|&byte| byte == b':') {
        Some(colon) => {
            let value = &line[colon + 1..];
            (&line[..colon], value.strip_prefix(b" ").unwrap_or(value))
        }
        None => (line, b""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Owned = (String, String, String);

    fn parse(pieces: &[&[u8]]) -> Result<Vec<Owned>, SseError> {
        let mut parser = Parser::new(1 << 16);
        let mut events = Vec::new();
        for piece in pieces {
            parser.push(piece, |event| {
                let own = |bytes| String::from_utf8_lossy(bytes).into_owned();
                events.push((own(event.data), own(event.last_event_id), own(event.event_type)));
            })?;
        }
        Ok(events)
    }

    fn data_of(stream: &str) -> Vec<String> {
        parse(&[stream.as_bytes()]).unwrap().into_iter().map(|event| event.0).collect()
    }

    #[test]
    fn joins_data_lines_and_strips_one_space() {
        assert_eq!(data_of("data: a\ndata:  b\ndata:c\n\n"), ["a\n b\nc"]);
    }

    #[test]
    fn accepts_every_line_end() {
        assert_eq!(data_of("data: a\r\n\r\ndata: b\r\rdata: c\n\n"), ["a", "b", "c"]);
    }

    #[test]
    fn drops_an_event_without_its_blank_line() {
        assert_eq!(data_of("data: a\n\ndata: b\n"), ["a"]);
    }

    #[test]
    fn keeps_id_and_forgets_event_type() {
        let events = parse(&[b"id: 7\nevent: x\ndata: a\n\ndata: b\n\nid\ndata: c\n\n"]).unwrap();
        let own = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
        assert_eq!(events, [own("a", "7", "x"), own("b", "7", ""), own("c", "", "")]);
    }

    #[test]
    fn ignores_comments_and_unknown_fields() {
        assert!(parse(&[b": hi\n:\nretry: 3\nfoo\n\n"]).unwrap().is_empty());
    }

    #[test]
    fn skips_a_byte_order_mark_once() {
        assert_eq!(data_of("\u{feff}data: a\n\n"), ["a"]);
    }

    #[test]
    fn refuses_an_endless_line_and_stays_refused() {
        let mut parser = Parser::new(100);
        let mut pushed = 0;
        let error = loop {
            pushed += 1;
            if let Err(error) = parser.push(&[b'x'; 10], |_| ()) {
                break error;
            }
        };
        assert_eq!((pushed, error), (11, SseError::EventTooLarge { limit_bytes: 100 }));
        assert!(parser.push(b"\n\ndata: a\n\n", |_| panic!("failed parser spoke")).is_err());
    }

    #[test]
    fn refuses_a_long_line_in_one_piece_as_in_many() {
        const LIMIT_BYTES: usize = 100;
        for (length, fits) in [(LIMIT_BYTES, true), (LIMIT_BYTES + 1, false), (10_000, false)] {
            let text = alloc::format!("data: a\n\ndata: {:x<1$}\n\n", "", length - "data: ".len());
            for piece in [1, 7, LIMIT_BYTES + 1, text.len()] {
                let mut parser = Parser::new(LIMIT_BYTES);
                let mut events = 0;
                let mut pieces = text.as_bytes().chunks(piece);
                let all = pieces.all(|piece| parser.push(piece, |_| events += 1).is_ok());
                assert_eq!((all, events), (fits, 1 + usize::from(fits)), "{length} in {piece}");
                assert!(parser.buffered_bytes() <= LIMIT_BYTES);
            }
        }
    }

    #[test]
    fn refuses_an_endless_event_of_short_lines() {
        let mut parser = Parser::new(100);
        let refused = (0..1000).any(|_| parser.push(b"data: abc\n", |_| ()).is_err());
        assert!(refused);
    }

    /// Streams of meaningful pieces, so that random input reaches every branch.
    fn stream_bytes() -> impl Strategy<Value = Vec<u8>> {
        let word = prop_oneof![
            Just(b"data: ".to_vec()),
            Just(b"data".to_vec()),
            Just(b"id:".to_vec()),
            Just(b"event: ".to_vec()),
            Just(b":".to_vec()),
            Just(b"\n".to_vec()),
            Just(b"\r".to_vec()),
            Just(b"\r\n".to_vec()),
            Just("\u{feff}".as_bytes().to_vec()),
            proptest::collection::vec(any::<u8>(), 0..6),
        ];
        proptest::collection::vec(word, 0..60).prop_map(|words| words.concat())
    }

    proptest! {
        /// The result does not depend on where the network splits the stream.
        #[test]
        fn cuts_do_not_matter(stream in stream_bytes(), cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8)) {
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
            at.extend([0, stream.len()]);
            at.sort_unstable();
            let pieces: Vec<&[u8]> = at.windows(2).map(|w| &stream[w[0]..w[1]]).collect();
            prop_assert_eq!(parse(&pieces), parse(&[&stream]));
        }

        /// Hostile input neither panics nor grows the parser beyond its limit.
        #[test]
        fn memory_is_bounded(pieces in proptest::collection::vec(stream_bytes(), 0..20), limit in 1usize..64) {
            let mut parser = Parser::new(limit);
            for piece in &pieces {
                let _ = parser.push(piece, |event| assert!(event.data.len() <= limit));
                prop_assert!(parser.buffered_bytes() <= 4 * limit);
            }
        }

        /// Any lines written as an event are read back.
        #[test]
        fn round_trip(lines in proptest::collection::vec("[^\r\n]{1,20}", 1..5)) {
            let stream: String = lines.iter().map(|line| format!("data: {line}\n")).collect();
            prop_assert_eq!(data_of(&(stream + "\n")), [lines.join("\n")]);
        }
    }
}
