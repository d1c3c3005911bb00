//! JSON read without changing it: members and numbers stay the text they came as.
//!
//! jiter does the scanning (it refuses lone surrogates, `NaN` and `Infinity`, and never turns a
//! number into a float unless asked). Everything here refuses nesting deeper than [`MAX_DEPTH`].
//! jiter's own bound: integer digits beyond 4,300, which Python does not write either, are refused.

use jiter::{Jiter, JiterError, Peek};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

/// The deepest nesting of arrays and objects that is taken (contract, section 3).
pub const MAX_DEPTH: usize = 128;

/// Why a text is not taken as JSON, with the place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} at line {line} column {column}")]
pub struct JsonError {
    what: String,
    /// From 1.
    pub line: usize,
    /// From 1, in bytes.
    pub column: usize,
}

impl JsonError {
    /// The bytes are not UTF-8; used where no better place is known.
    #[must_use]
    pub fn not_utf8() -> Self {
        Self { what: "invalid UTF-8".to_owned(), line: 1, column: 1 }
    }

    /// Checks that bytes are UTF-8 and says where they are not.
    ///
    /// # Errors
    /// The place of the first byte that is no UTF-8.
    pub fn check_utf8(bytes: &[u8]) -> Result<&str, Self> {
        std::str::from_utf8(bytes).map_err(|e| {
            let good = &bytes[..e.valid_up_to()];
            let line = good.iter().filter(|b| **b == b'\n').count() + 1;
            let column = good.iter().rev().take_while(|b| **b != b'\n').count() + 1;
            Self { what: "invalid UTF-8".to_owned(), line, column }
        })
    }

    fn at(jiter: &Jiter<'_>, index: usize, what: impl Into<String>) -> Self {
        let place = jiter.error_position(index);
        Self { what: what.into(), line: place.line, column: place.column.max(1) }
    }

    fn from_jiter(jiter: &Jiter<'_>, error: &JiterError) -> Self {
        Self::at(jiter, error.index, error.error_type.to_string())
    }
}

/// A JSON value that borrows from its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Json<'a> {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number, as written.
    Number(&'a str),
    /// A string, decoded.
    String(Cow<'a, str>),
    /// An array.
    Array(Vec<Json<'a>>),
    /// An object: members in their order, double keys kept.
    Object(Vec<(Cow<'a, str>, Json<'a>)>),
}

impl<'a> Json<'a> {
    /// What a person calls a value of this type.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::String(_) => "a string",
            Self::Array(_) => "an array",
            Self::Object(_) => "an object",
        }
    }

    /// The text of a string.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(s) => Some(s),
            _ => None,
        }
    }

    /// The member of that name, the last where a key stands twice.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Json<'a>> {
        match self {
            Self::Object(members) => members.iter().rev().find(|(k, _)| k == key).map(|(_, v)| v),
            _ => None,
        }
    }

    /// How deep arrays and objects nest: 0 for a scalar.
    #[must_use]
    pub fn depth(&self) -> usize {
        match self {
            Self::Array(items) => 1 + items.iter().map(Json::depth).max().unwrap_or(0),
            Self::Object(members) => 1 + members.iter().map(|(_, v)| v.depth()).max().unwrap_or(0),
            _ => 0,
        }
    }
}

/// Writes compact JSON; numbers as they came.
impl fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(b) => write!(f, "{b}"),
            Self::Number(text) => f.write_str(text),
            Self::String(text) => Quoted(text).fmt(f),
            Self::Array(items) => {
                f.write_char('[')?;
                for (i, item) in items.iter().enumerate() {
                    if i > 0 {
                        f.write_char(',')?;
                    }
                    item.fmt(f)?;
                }
                f.write_char(']')
            }
            Self::Object(members) => {
                f.write_char('{')?;
                for (i, (key, value)) in members.iter().enumerate() {
                    if i > 0 {
                        f.write_char(',')?;
                    }
                    write!(f, "{}:{value}", Quoted(key))?;
                }
                f.write_char('}')
            }
        }
    }
}

/// A text that displays as a JSON string, quotes included.
#[derive(Debug, Clone, Copy)]
pub struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        let mut rest = self.0;
        while let Some(at) = rest.find(|c: char| c < ' ' || c == '"' || c == '\\') {
            f.write_str(&rest[..at])?;
            match rest.as_bytes()[at] {
                b'"' => f.write_str("\\\"")?,
                b'\\' => f.write_str("\\\\")?,
                b'\n' => f.write_str("\\n")?,
                b'\r' => f.write_str("\\r")?,
                b'\t' => f.write_str("\\t")?,
                control => write!(f, "\\u{control:04x}")?,
            }
            rest = &rest[at + 1..];
        }
        f.write_str(rest)?;
        f.write_char('"')
    }
}

/// One member of a top-level object.
#[derive(Debug, Clone)]
pub struct Member<'a> {
    /// The key, decoded.
    pub key: Cow<'a, str>,
    /// The value's text, exact, without the white space around it.
    pub raw: &'a str,
}

/// Scans a whole document and cuts its top-level object into members. Double keys are kept: the
/// caller says whether they are an error.
///
/// # Errors
/// [`JsonError`] when the text is no JSON, nests too deep, or is no object.
pub fn members(text: &str) -> Result<Vec<Member<'_>>, JsonError> {
    let mut scan = Scan::new(text);
    let first = scan.peek()?;
    if first != Peek::Object {
        scan.pass(first, 0)?;
        scan.finish()?;
        return Err(JsonError::at(&scan.jiter, 0, "expected an object"));
    }
    let mut found = Vec::with_capacity(16);
    let mut key = scan.object_first()?;
    while let Some(name) = key {
        let peek = scan.peek()?;
        let start = scan.jiter.current_index();
        scan.pass(peek, 1)?;
        let raw = &text[start..scan.jiter.current_index()];
        found.push(Member { key: name, raw: raw.trim_ascii() });
        key = scan.object_step()?;
    }
    scan.finish()?;
    Ok(found)
}

/// Reads a whole document.
///
/// # Errors
/// [`JsonError`] when the text is no JSON or nests too deep.
pub fn parse(text: &str) -> Result<Json<'_>, JsonError> {
    let mut scan = Scan::new(text);
    let peek = scan.peek()?;
    let value = scan.value(peek, 0)?;
    scan.finish()?;
    Ok(value)
}

/// The object's text with one member set: its value replaced where the key stands (the last, of a
/// double key), else the member appended. Everything else keeps its text.
///
/// # Errors
/// [`JsonError`] when `object` is no JSON object.
pub fn with_member(object: &str, key: &str, raw: &str) -> Result<String, JsonError> {
    let found = members(object)?;
    let mut text = String::with_capacity(object.len() + key.len() + raw.len() + 8);
    if let Some(member) = found.iter().rev().find(|m| m.key == key) {
        let start = member.raw.as_ptr().addr() - object.as_ptr().addr();
        text.push_str(&object[..start]);
        text.push_str(raw);
        text.push_str(&object[start + member.raw.len()..]);
    } else {
        let end = object.rfind('}').unwrap_or(object.len());
        text.push_str(object[..end].trim_end());
        if !found.is_empty() {
            text.push_str(", ");
        }
        let _ = write!(text, "{}: {raw}", Quoted(key));
        text.push_str(&object[end..]);
    }
    Ok(text)
}

/// Whether two values are the same JSON value: member order and white space do not matter, numbers
/// compare exactly by value (`1` = `1.0` = `10e-1`), of a double key the last counts.
#[must_use]
pub fn same_value(a: &Json<'_>, b: &Json<'_>) -> bool {
    match (a, b) {
        (Json::Null, Json::Null) => true,
        (Json::Bool(x), Json::Bool(y)) => x == y,
        (Json::Number(x), Json::Number(y)) => Decimal::of(x) == Decimal::of(y),
        (Json::String(x), Json::String(y)) => x == y,
        (Json::Array(x), Json::Array(y)) => {
            x.len() == y.len() && x.iter().zip(y).all(|(x, y)| same_value(x, y))
        }
        (Json::Object(x), Json::Object(y)) => {
            let x: BTreeMap<&str, &Json<'_>> = x.iter().map(|(k, v)| (&**k, v)).collect();
            let y: BTreeMap<&str, &Json<'_>> = y.iter().map(|(k, v)| (&**k, v)).collect();
            x.len() == y.len()
                && x.iter().zip(&y).all(|((kx, vx), (ky, vy))| kx == ky && same_value(vx, vy))
        }
        _ => false,
    }
}

/// A number's exact decimal value: `digits × 10^exponent`, digits without leading or trailing
/// zeros, so that equal values are equal fields. Zero has no digits and no sign.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decimal {
    /// Below zero.
    pub negative: bool,
    /// The significant digits.
    pub digits: String,
    /// The power of ten that the digits, read as an integer, are multiplied with. Beyond what an
    /// `i128` holds (a number of 10^38 digits) it stands still; values still compare exactly.
    pub exponent: i128,
    /// The whole exponent, where an `i128` does not hold it.
    beyond: Option<Box<str>>,
}

impl Decimal {
    /// Of a JSON number's text.
    #[must_use]
    pub fn of(number: &str) -> Self {
        let (negative, body) = match number.strip_prefix('-') {
            Some(body) => (true, body),
            None => (false, number),
        };
        let (mantissa, power) = body.split_once(['e', 'E']).unwrap_or((body, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = [whole, fraction].concat();
        let significant = all.trim_start_matches('0');
        let digits = significant.trim_end_matches('0');
        if digits.is_empty() {
            return Self { negative: false, digits: String::new(), exponent: 0, beyond: None };
        }
        let length = |n: usize| i128::try_from(n).unwrap_or(i128::MAX);
        let shift = length(significant.len() - digits.len()) - length(fraction.len());
        let (exponent, beyond) = match power.parse().ok().and_then(|p: i128| p.checked_add(shift)) {
            Some(exponent) => (exponent, None),
            None => {
                let exact = far_sum(power, shift);
                let end = if exact.starts_with('-') { i128::MIN } else { i128::MAX };
                match exact.parse() {
                    Ok(exponent) => (exponent, None),
                    Err(_) => (end, Some(exact.into())),
                }
            }
        };
        Self { negative, digits: digits.to_owned(), exponent, beyond }
    }
}

/// The sum of an integer of at least 39 digits and a small one, exact: two numbers that differ must
/// never pass for the same answer, however far out they are.
fn far_sum(far: &str, small: i128) -> String {
    const LOW_DIGITS: usize = 30;
    const LOW: i128 = 10_i128.pow(30);
    let negative = far.starts_with('-');
    let digits = far.trim_start_matches(['+', '-']).trim_start_matches('0');
    let (high, low) = digits.split_at(digits.len().saturating_sub(LOW_DIGITS));
    let low = low.parse::<i128>().unwrap_or(0) + if negative { -small } else { small };
    let mut carry = low.div_euclid(LOW);
    let mut high = high.as_bytes().to_vec();
    for digit in high.iter_mut().rev() {
        let sum = i128::from(*digit - b'0') + carry;
        carry = sum.div_euclid(10);
        *digit = b'0' + u8::try_from(sum.rem_euclid(10)).unwrap_or(0);
    }
    let high = String::from_utf8(high).unwrap_or_default();
    let sign = if negative { "-" } else { "" };
    let more = if carry > 0 { "1" } else { "" };
    let high = format!("{more}{high}");
    format!("{sign}{}{:030}", high.trim_start_matches('0'), low.rem_euclid(LOW))
}

struct Scan<'a> {
    text: &'a str,
    jiter: Jiter<'a>,
}

impl<'a> Scan<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, jiter: Jiter::new(text.as_bytes()) }
    }

    fn peek(&mut self) -> Result<Peek, JsonError> {
        self.jiter.peek().map_err(|e| JsonError::from_jiter(&self.jiter, &e))
    }

    fn finish(&mut self) -> Result<(), JsonError> {
        self.jiter.finish().map_err(|e| JsonError::from_jiter(&self.jiter, &e))
    }

    fn too_deep(&self) -> JsonError {
        JsonError::at(
            &self.jiter,
            self.jiter.current_index(),
            format!("nested deeper than {MAX_DEPTH} levels"),
        )
    }

    fn object_first(&mut self) -> Result<Option<Cow<'a, str>>, JsonError> {
        match self.jiter.known_object() {
            Ok(key) => Ok(key.map(|k| Cow::Owned(k.to_owned()))),
            Err(e) => Err(JsonError::from_jiter(&self.jiter, &e)),
        }
    }

    fn object_step(&mut self) -> Result<Option<Cow<'a, str>>, JsonError> {
        match self.jiter.next_key() {
            Ok(key) => Ok(key.map(|k| Cow::Owned(k.to_owned()))),
            Err(e) => Err(JsonError::from_jiter(&self.jiter, &e)),
        }
    }

    fn number(&mut self, peek: Peek) -> Result<&'a str, JsonError> {
        let start = self.jiter.current_index();
        match self.jiter.known_number_bytes(peek) {
            Ok(_) => Ok(&self.text[start..self.jiter.current_index()]),
            Err(e) if peek.is_num() => Err(JsonError::from_jiter(&self.jiter, &e)),
            Err(e) => Err(JsonError::at(&self.jiter, e.index, "expected a JSON value")),
        }
    }

    fn pass(&mut self, peek: Peek, depth: usize) -> Result<(), JsonError> {
        let done = match peek {
            Peek::Null => self.jiter.known_null(),
            Peek::True | Peek::False => self.jiter.known_bool(peek).map(drop),
            Peek::String => self.jiter.known_str().map(drop),
            Peek::Array => {
                if depth == MAX_DEPTH {
                    return Err(self.too_deep());
                }
                let mut next = self.jiter.known_array();
                loop {
                    match next {
                        Ok(Some(item)) => self.pass(item, depth + 1)?,
                        Ok(None) => break Ok(()),
                        Err(e) => break Err(e),
                    }
                    next = self.jiter.array_step();
                }
            }
            Peek::Object => {
                if depth == MAX_DEPTH {
                    return Err(self.too_deep());
                }
                let mut more = self.jiter.known_object().map(|key| key.is_some());
                loop {
                    match more {
                        Ok(true) => {
                            let value = self.peek()?;
                            self.pass(value, depth + 1)?;
                        }
                        Ok(false) => break Ok(()),
                        Err(e) => break Err(e),
                    }
                    more = self.jiter.next_key().map(|key| key.is_some());
                }
            }
            _ => return self.number(peek).map(drop),
        };
        done.map_err(|e| JsonError::from_jiter(&self.jiter, &e))
    }

    fn value(&mut self, peek: Peek, depth: usize) -> Result<Json<'a>, JsonError> {
        let step = match peek {
            Peek::Null => self.jiter.known_null().map(|()| Json::Null),
            Peek::True | Peek::False => self.jiter.known_bool(peek).map(Json::Bool),
            Peek::String => {
                let start = self.jiter.current_index();
                match self.jiter.known_str() {
                    Ok(decoded) => {
                        // Without an escape the decoded text stands in the source as it is.
                        let plain = self.text.get(start + 1..start + 1 + decoded.len());
                        Ok(Json::String(match plain {
                            Some(plain) if plain == decoded => Cow::Borrowed(plain),
                            _ => Cow::Owned(decoded.to_owned()),
                        }))
                    }
                    Err(e) => Err(e),
                }
            }
            Peek::Array => {
                if depth == MAX_DEPTH {
                    return Err(self.too_deep());
                }
                let mut items = Vec::new();
                let mut next = self.jiter.known_array();
                loop {
                    match next {
                        Ok(Some(item)) => items.push(self.value(item, depth + 1)?),
                        Ok(None) => break Ok(Json::Array(items)),
                        Err(e) => break Err(e),
                    }
                    next = self.jiter.array_step();
                }
            }
            Peek::Object => {
                if depth == MAX_DEPTH {
                    return Err(self.too_deep());
                }
                let mut members = Vec::new();
                let mut key = self.object_first()?;
                while let Some(name) = key {
                    let value = self.peek()?;
                    members.push((name, self.value(value, depth + 1)?));
                    key = self.object_step()?;
                }
                Ok(Json::Object(members))
            }
            _ => return self.number(peek).map(Json::Number),
        };
        step.map_err(|e| JsonError::from_jiter(&self.jiter, &e))
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
