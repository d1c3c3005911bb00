//! What people see: lines, tables and complaints.

use super::exit::Failure;
use comfy_table::{ContentArrangement, Table, presets};
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};

/// Writes a line to standard output at once.
///
/// # Errors
/// Nobody reads it, or it cannot be written.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()?;
    Ok(())
}

/// Writes JSON as it came, on one line: outside of strings a line break is only a blank.
///
/// # Errors
/// As [`line`].
pub(crate) fn json_line(raw: &[u8]) -> Result<(), Failure> {
    let mut bytes = raw.trim_ascii().to_vec();
    for byte in &mut bytes {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    bytes.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&bytes)?;
    out.flush()?;
    Ok(())
}

/// Writes a line to standard error, where a failure has nowhere else to go.
pub(crate) fn complain(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// A table that fits the terminal; plain columns where there is none.
pub(crate) fn table(header: Option<&[&str]>, rows: &[Vec<String>]) -> String {
    let width = io::stdout().is_terminal().then(terminal_size::terminal_size).flatten();
    table_of_width(header, rows, width.map(|(width, _)| width.0))
}

fn table_of_width(header: Option<&[&str]>, rows: &[Vec<String>], width: Option<u16>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    match width {
        Some(width) => {
            table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        }
        None => {
            table.set_content_arrangement(ContentArrangement::Disabled);
        }
    }
    if let Some(header) = header {
        table.set_header(header.iter().map(ToString::to_string).collect::<Vec<_>>());
    }
    for row in rows {
        table.add_row(row.iter().map(|cell| clean(cell)).collect::<Vec<_>>());
    }
    let columns = table.column_count();
    for column in 0..columns {
        if let Some(column) = table.column_mut(column) {
            column.set_padding((0, 2));
        }
    }
    table.trim_fmt()
}

/// A text that cannot steer a terminal: control characters and those that turn the reading
/// direction stand as JSON would escape them.
pub(crate) fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        let steers = c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if steers {
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
}

/// JSON for people: indented, every token as it came.
pub(crate) fn indented(raw: &str, indent: usize) -> String {
    let mut out = String::with_capacity(raw.len() * 2);
    let mut depth = 0_usize;
    let mut in_string = false;
    let mut escaped = false;
    let new_line = |out: &mut String, depth: usize| {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', indent + 2 * depth));
    };
    out.extend(std::iter::repeat_n(' ', indent));
    let mut chars = raw.chars().filter(|c| *c != '\u{feff}').peekable();
    while let Some(c) = chars.next() {
        if in_string {
            out.push_str(&clean(c.encode_utf8(&mut [0; 4])));
            in_string = escaped || c != '"';
            escaped = !escaped && c == '\\';
            continue;
        }
        match c {
            '"' => {
                in_string = true;
                out.push(c);
            }
            '{' | '[' => {
                out.push(c);
                while chars.next_if(|c| c.is_ascii_whitespace()).is_some() {}
                if let Some(close) = chars.next_if(|c| matches!(c, '}' | ']')) {
                    out.push(close);
                } else {
                    depth += 1;
                    new_line(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                new_line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                new_line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            c if c.is_ascii_whitespace() => {}
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_terminal_columns_are_plain_and_never_wrapped() {
        let rows = vec![
            vec!["a".to_owned(), "x".repeat(100)],
            vec!["bbbb".to_owned(), "y\u{1b}[2J".to_owned()],
        ];
        let text = table_of_width(Some(&["ID", "WHAT"]), &rows, None);
        let expected = format!("ID    WHAT\na     {}\nbbbb  y\\u001b[2J", "x".repeat(100));
        assert_eq!(text, expected);
    }

    #[test]
    fn on_a_terminal_a_table_keeps_within_its_width() {
        let rows = vec![vec!["a".to_owned(), "word ".repeat(40)]];
        let text = table_of_width(Some(&["ID", "WHAT"]), &rows, Some(40));
        assert!(text.lines().count() > 2);
        assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
    }

    #[test]
    fn json_is_indented_token_by_token() {
        assert_eq!(
            indented(r#"{"a":1.10,"b":[1e400,[]],"c":"x,{\":}","d":{}}"#, 2),
            "  {\n    \"a\": 1.10,\n    \"b\": [\n      1e400,\n      []\n    ],\n    \"c\": \"x,{\\\":}\",\n    \"d\": {}\n  }"
        );
        assert_eq!(indented("null", 0), "null");
        assert_eq!(indented("\"\u{202e}\"", 0), "\"\\u202e\"");
    }
}
