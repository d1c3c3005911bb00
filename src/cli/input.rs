//! Reads arguments that can stand in a file, and files of messages.

use super::exit::Failure;
use anyhow::Context as _;
use serde::de::IgnoredAny;
use std::io::{self, BufRead, Read as _};

/// The most bytes a message is read to: well over what the daemon takes, so that the daemon says
/// what is wrong with a larger one.
const MAX_MESSAGE: u64 = 4 << 20;

/// An argument's text: itself, or for `@FILE` the file's (`@-`: standard input).
///
/// # Errors
/// The file cannot be read.
pub(crate) fn argument(text: &str) -> Result<String, Failure> {
    let Some(name) = text.strip_prefix('@') else { return Ok(text.to_owned()) };
    let mut content = String::new();
    let read = match name {
        "-" => io::stdin().lock().take(MAX_MESSAGE).read_to_string(&mut content),
        name => std::fs::File::open(name)
            .and_then(|file| file.take(MAX_MESSAGE).read_to_string(&mut content)),
    };
    read.with_context(|| format!("{name} cannot be read"))?;
    Ok(content)
}

/// A message of a file and the line it starts on, from 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Numbered {
    pub(crate) line: usize,
    /// Whether it is the whole file, so that its line says nothing.
    pub(crate) alone: bool,
    /// `None` where it is longer than any daemon takes, and was skipped.
    pub(crate) text: Option<Vec<u8>>,
}

/// Reads one envelope, spread over lines as it likes, or many, one a line.
pub(crate) struct Messages<R> {
    input: R,
    line: usize,
    /// Read ahead to find out which of the two it is.
    ahead: Vec<Numbered>,
    whole: bool,
    started: bool,
}

impl<R: BufRead> Messages<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { input, line: 0, ahead: Vec::new(), whole: false, started: false }
    }

    /// The next message; `None` at the end. Empty lines are skipped.
    ///
    /// # Errors
    /// The input cannot be read.
    pub(crate) fn next(&mut self) -> io::Result<Option<Numbered>> {
        if !self.started {
            self.started = true;
            self.look_ahead()?;
        }
        if let Some(message) = self.ahead.pop() {
            return Ok(Some(message));
        }
        if self.whole { Ok(None) } else { self.next_line() }
    }

    /// One a line it is, unless the first line is no message by itself and the next does not start
    /// like one: then all of it is one message.
    fn look_ahead(&mut self) -> io::Result<()> {
        let Some(mut first) = self.next_line()? else { return Ok(()) };
        let Some(second) = self.next_line()? else {
            first.alone = true;
            self.ahead.push(first);
            return Ok(());
        };
        let complete = first
            .text
            .as_ref()
            .is_none_or(|text| serde_json::from_slice::<IgnoredAny>(text).is_ok());
        if complete {
            self.ahead = vec![second, first];
            return Ok(());
        }
        let closed = |m: &Numbered| m.text.as_ref().is_some_and(|t| t.trim_ascii().ends_with(b"}"));
        let opens = |m: &Numbered| m.text.as_ref().is_none_or(|t| t.trim_ascii().starts_with(b"{"));
        if closed(&first) && opens(&second) {
            self.ahead = vec![second, first];
            return Ok(());
        }
        let mut text = first.text.unwrap_or_default();
        text.push(b'\n');
        text.extend(second.text.unwrap_or_default());
        text.push(b'\n');
        self.input.by_ref().take(MAX_MESSAGE).read_to_end(&mut text)?;
        self.whole = true;
        self.ahead.push(Numbered { line: first.line, alone: true, text: Some(text) });
        Ok(())
    }

    fn next_line(&mut self) -> io::Result<Option<Numbered>> {
        loop {
            let mut text = Vec::new();
            let read = self.input.by_ref().take(MAX_MESSAGE).read_until(b'\n', &mut text)?;
            if read == 0 {
                return Ok(None);
            }
            self.line += 1;
            let too_long =
                u64::try_from(read).is_ok_and(|n| n == MAX_MESSAGE) && !text.ends_with(b"\n");
            if too_long {
                self.skip_line()?;
                return Ok(Some(Numbered { line: self.line, alone: false, text: None }));
            }
            let trimmed = text.trim_ascii();
            if !trimmed.is_empty() {
                return Ok(Some(Numbered {
                    line: self.line,
                    alone: false,
                    text: Some(trimmed.to_vec()),
                }));
            }
        }
    }

    /// Passes over the rest of a line without keeping it.
    fn skip_line(&mut self) -> io::Result<()> {
        loop {
            let buffer = self.input.fill_buf()?;
            if buffer.is_empty() {
                return Ok(());
            }
            let end = buffer.iter().position(|b| *b == b'\n');
            let passed = end.map_or(buffer.len(), |at| at + 1);
            self.input.consume(passed);
            if end.is_some() {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(usize, String)> {
        let mut messages = Messages::new(text.as_bytes());
        let mut out = Vec::new();
        while let Some(message) = messages.next().unwrap() {
            let text = message.text.map_or("skipped".to_owned(), |t| String::from_utf8(t).unwrap());
            out.push((message.line, text));
        }
        out
    }

    fn numbered(items: &[(usize, &str)]) -> Vec<(usize, String)> {
        items.iter().map(|(line, text)| (*line, (*text).to_owned())).collect()
    }

    #[test]
    fn one_message_may_spread_over_lines() {
        assert_eq!(read("{\n \"a\": 1\n}\n"), numbered(&[(1, "{\n\"a\": 1\n}\n")]));
        assert_eq!(read("{\"a\":1}"), numbered(&[(1, "{\"a\":1}")]));
        assert_eq!(read(""), numbered(&[]));
    }

    #[test]
    fn a_message_that_is_alone_is_told_apart() {
        let alone = |text: &str| Messages::new(text.as_bytes()).next().unwrap().unwrap().alone;
        assert!(alone("{}") && alone("{\n}") && alone("{\"a\":NaN}\n"));
        assert!(!alone("{}\n{}"));
    }

    #[test]
    fn many_messages_stand_one_a_line_also_when_some_are_broken() {
        assert_eq!(
            read("{\"a\":1}\n\n  {\"b\":2}\r\n"),
            numbered(&[(1, "{\"a\":1}"), (3, "{\"b\":2}")])
        );
        assert_eq!(
            read("{\"a\":NaN}\n{\"b\":2}\nnonsense\n"),
            numbered(&[(1, "{\"a\":NaN}"), (2, "{\"b\":2}"), (3, "nonsense")])
        );
        assert_eq!(read("{\"a\":NaN}\n"), numbered(&[(1, "{\"a\":NaN}")]));
    }

    #[test]
    fn a_line_too_long_for_anything_is_skipped_not_kept() {
        let long = "x".repeat(5 << 20);
        let text = format!("{{}}\n{long}\n{{\"b\":2}}\n");
        assert_eq!(read(&text), numbered(&[(1, "{}"), (2, "skipped"), (3, "{\"b\":2}")]));
    }
}
