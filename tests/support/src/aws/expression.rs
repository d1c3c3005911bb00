//! DynamoDB's condition and update expressions, as much of them as a row a wait needs.

use super::faults::Refusal;
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Words that may not stand bare as an attribute name (the developer guide's list).
const RESERVED: &str = include_str!("reserved-words.txt");
/// Bytes of an expression.
const BYTES: usize = 4_096;

type Item = Map<String, Value>;

fn invalid(what: impl Into<String>) -> Refusal {
    Refusal::sender("ValidationException", what)
}

/// The names and values that a request brings along; every one must be used.
pub(super) struct Substitutes<'a> {
    names: Option<&'a Item>,
    values: Option<&'a Item>,
    used: RefCell<BTreeSet<String>>,
}

impl<'a> Substitutes<'a> {
    pub(super) fn of(request: &'a Value) -> Self {
        Self {
            names: request["ExpressionAttributeNames"].as_object(),
            values: request["ExpressionAttributeValues"].as_object(),
            used: RefCell::default(),
        }
    }

    fn name(&self, token: &str) -> Result<String, Refusal> {
        if !token.starts_with('#') {
            if RESERVED.split_whitespace().any(|word| word.eq_ignore_ascii_case(token)) {
                return Err(invalid(format!(
                    "Invalid expression: Attribute name is a reserved keyword; reserved keyword: {token}"
                )));
            }
            return Ok(token.to_owned());
        }
        let known = self.names.and_then(|names| names.get(token)).and_then(Value::as_str);
        self.used.borrow_mut().insert(token.to_owned());
        known.map(ToOwned::to_owned).ok_or_else(|| {
            invalid(format!("An expression attribute name used in the document path is not defined; attribute name: {token}"))
        })
    }

    fn value(&self, token: &str) -> Result<Value, Refusal> {
        self.used.borrow_mut().insert(token.to_owned());
        self.values.and_then(|values| values.get(token)).cloned().ok_or_else(|| {
            invalid(format!("An expression attribute value used in expression is not defined; attribute value: {token}"))
        })
    }

    /// To be called once every expression has been read.
    pub(super) fn all_used(&self) -> Result<(), Refusal> {
        let used = self.used.borrow();
        let mut given = self.names.into_iter().chain(self.values).flat_map(Map::keys);
        match given.find(|name| !used.contains(*name)) {
            Some(name) => Err(invalid(format!(
                "Value provided in ExpressionAttributeNames or Values unused in expressions: {name}"
            ))),
            None => Ok(()),
        }
    }
}

struct Parser<'a, 'b> {
    tokens: std::iter::Peekable<std::vec::IntoIter<String>>,
    item: &'b Item,
    substitutes: &'b Substitutes<'a>,
}

fn tokens(text: &str) -> Result<Vec<String>, Refusal> {
    if text.len() > BYTES {
        return Err(invalid("Expression size has exceeded the maximum allowed size"));
    }
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '#' | ':');
        let length = if word(first) {
            rest.find(|c| !word(c)).unwrap_or(rest.len())
        } else if ["<>", "<=", ">="].iter().any(|two| rest.starts_with(two)) {
            2
        } else if "()=<>,+-".contains(first) {
            1
        } else {
            return Err(invalid(format!(
                "Syntax error; token: \"{first}\"; the stub knows top-level attributes only"
            )));
        };
        found.push(rest[..length].to_owned());
        rest = rest[length..].trim_start();
    }
    Ok(found)
}

impl Parser<'_, '_> {
    fn peek_is(&mut self, word: &str) -> bool {
        self.tokens.peek().is_some_and(|t| t.eq_ignore_ascii_case(word))
    }

    fn take_if(&mut self, word: &str) -> bool {
        let is = self.peek_is(word);
        if is {
            self.tokens.next();
        }
        is
    }

    fn next(&mut self) -> Result<String, Refusal> {
        self.tokens.next().ok_or_else(|| invalid("Syntax error; the expression ends too early"))
    }

    fn need(&mut self, word: &str) -> Result<(), Refusal> {
        let got = self.next()?;
        if got == word {
            Ok(())
        } else {
            Err(invalid(format!("Syntax error; token: \"{got}\", wanted \"{word}\"")))
        }
    }

    fn attribute(&mut self) -> Result<Option<Value>, Refusal> {
        let token = self.next()?;
        Ok(self.item.get(&self.substitutes.name(&token)?).cloned())
    }

    fn operand(&mut self) -> Result<Option<Value>, Refusal> {
        let token = self.next()?;
        if token.starts_with(':') {
            return self.substitutes.value(&token).map(Some);
        }
        if token == "if_not_exists" {
            self.need("(")?;
            let present = self.attribute()?;
            self.need(",")?;
            let other = self.operand()?;
            self.need(")")?;
            return Ok(present.or(other));
        }
        Ok(self.item.get(&self.substitutes.name(&token)?).cloned())
    }

    fn any(&mut self) -> Result<bool, Refusal> {
        let mut holds = self.all()?;
        while self.take_if("OR") {
            holds |= self.all()?;
        }
        Ok(holds)
    }

    fn all(&mut self) -> Result<bool, Refusal> {
        let mut holds = self.one()?;
        while self.take_if("AND") {
            holds &= self.one()?;
        }
        Ok(holds)
    }

    fn one(&mut self) -> Result<bool, Refusal> {
        if self.take_if("NOT") {
            return Ok(!self.one()?);
        }
        if self.take_if("(") {
            let holds = self.any()?;
            self.need(")")?;
            return Ok(holds);
        }
        for (function, wanted) in [("attribute_exists", true), ("attribute_not_exists", false)] {
            if self.take_if(function) {
                self.need("(")?;
                let present = self.attribute()?.is_some();
                self.need(")")?;
                return Ok(present == wanted);
            }
        }
        let left = self.operand()?;
        if self.take_if("IN") {
            self.need("(")?;
            let mut holds = false;
            loop {
                let one = self.operand()?;
                holds |= left.is_some() && one == left;
                if !self.take_if(",") {
                    break;
                }
            }
            self.need(")")?;
            return Ok(holds);
        }
        let operator = self.next()?;
        let right = self.operand()?;
        compare(left.as_ref(), &operator, right.as_ref())
    }
}

/// An absent attribute compares with nothing, but differs from everything.
fn compare(left: Option<&Value>, operator: &str, right: Option<&Value>) -> Result<bool, Refusal> {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let order = match (left, right) {
        (Some(left), Some(right)) if left == right => Some(Equal),
        (Some(left), Some(right)) => {
            let numbers = (left["N"].as_str(), right["N"].as_str());
            let texts = (left["S"].as_str(), right["S"].as_str());
            match (numbers, texts) {
                ((Some(a), Some(b)), _) => {
                    let near = |text: &str| text.parse::<f64>().ok();
                    near(a).partial_cmp(&near(b))
                }
                (_, (Some(a), Some(b))) => Some(a.cmp(b)),
                _ => None,
            }
        }
        _ => None,
    };
    Ok(match operator {
        "=" => order == Some(Equal),
        "<>" => order != Some(Equal),
        "<" => order == Some(Less),
        "<=" => matches!(order, Some(Less | Equal)),
        ">" => order == Some(Greater),
        ">=" => matches!(order, Some(Greater | Equal)),
        other => return Err(invalid(format!("Syntax error; token: \"{other}\""))),
    })
}

/// Whether a condition holds for an item (an empty one stands for none).
pub(super) fn holds(
    text: &str,
    item: &Item,
    substitutes: &Substitutes<'_>,
) -> Result<bool, Refusal> {
    let mut parser = Parser { tokens: tokens(text)?.into_iter().peekable(), item, substitutes };
    let holds = parser.any()?;
    match parser.tokens.next() {
        None => Ok(holds),
        Some(extra) => Err(invalid(format!("Syntax error; token: \"{extra}\""))),
    }
}

/// The item after an update; `SET` and `REMOVE`.
pub(super) fn updated(
    text: &str,
    item: &Item,
    substitutes: &Substitutes<'_>,
) -> Result<Item, Refusal> {
    let mut parser = Parser { tokens: tokens(text)?.into_iter().peekable(), item, substitutes };
    let mut after = item.clone();
    let mut touched = BTreeSet::new();
    while let Ok(clause) = parser.next() {
        loop {
            let token = parser.next()?;
            let name = substitutes.name(&token)?;
            if !touched.insert(name.clone()) {
                return Err(invalid(format!(
                    "Invalid UpdateExpression: Two document paths overlap with each other: {name}"
                )));
            }
            if name == "pk" || name == "sk" {
                return Err(invalid(format!(
                    "Cannot update attribute {name}. This attribute is part of the key"
                )));
            }
            match clause.to_ascii_uppercase().as_str() {
                "SET" => {
                    parser.need("=")?;
                    let value = parser.operand()?.ok_or_else(|| {
                        invalid("The provided expression refers to an attribute that does not exist in the item")
                    })?;
                    after.insert(name, value);
                }
                "REMOVE" => {
                    after.remove(&name);
                }
                other => return Err(invalid(format!("the stub does no {other}"))),
            }
            if !parser.take_if(",") {
                break;
            }
        }
    }
    Ok(after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn ask(condition: &str, request: &Value) -> Result<bool, String> {
        let item = json!({"pk": {"S": "p"}, "status": {"S": "open"}, "generation": {"N": "2"}});
        let substitutes = Substitutes::of(request);
        let holds = holds(condition, item.as_object().unwrap(), &substitutes);
        holds.and_then(|h| substitutes.all_used().map(|()| h)).map_err(|r| r.code)
    }

    #[test]
    fn conditions_are_judged_as_written() {
        let request = json!({
            "ExpressionAttributeNames": {"#s": "status"},
            "ExpressionAttributeValues": {":open": {"S": "open"}, ":n": {"N": "2.0"}},
        });
        for (condition, wanted) in [
            ("#s = :open AND generation <= :n", true),
            ("attribute_not_exists(pk) OR (#s = :open AND NOT generation > :n)", true),
            ("attribute_not_exists(pk) OR #s <> :open AND generation = :n", false),
            ("attribute_exists(pk) and #s IN (:n, :open)", true),
        ] {
            assert_eq!(ask(condition, &request), Ok(wanted), "{condition}");
        }
    }

    #[test]
    fn reserved_words_and_loose_ends_are_refused() {
        let one = json!({"ExpressionAttributeValues": {":open": {"S": "open"}}});
        for condition in [
            "status = :open",
            "#s = :open",
            "generation = :other",
            "attribute_exists(pk)",
            "attribute_exists(pk) AND generation = :open extra",
            "generation ? :open",
            "generation =",
        ] {
            assert_eq!(ask(condition, &one), Err("ValidationException".to_owned()), "{condition}");
        }
    }

    #[test]
    fn an_update_sets_and_removes() {
        let item = json!({"pk": {"S": "p"}, "a": {"S": "1"}, "b": {"S": "2"}});
        let request = json!({"ExpressionAttributeValues": {":x": {"S": "3"}}});
        let substitutes = Substitutes::of(&request);
        let item = item.as_object().unwrap();
        let update =
            |text| updated(text, item, &substitutes).map(Value::Object).map_err(|r| r.code);
        let after = update("SET a = :x, c = if_not_exists(b, :x) REMOVE b").unwrap();
        assert_eq!(after, json!({"pk": {"S": "p"}, "a": {"S": "3"}, "c": {"S": "2"}}));
        for bad in ["SET pk = :x", "SET a = :x, a = :x", "SET a = missing", "ADD a :x"] {
            assert!(update(bad).is_err(), "{bad}");
        }
    }
}
