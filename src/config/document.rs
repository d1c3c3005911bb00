//! TOML text into settings that know their line.

use answerback_contract::settings::{Place, Problem, Setting, Value};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use toml::de::{DeTable, DeValue};

/// A file's text and its name, to turn offsets into places.
struct Source<'a> {
    text: &'a str,
    file: Arc<str>,
}

impl Source<'_> {
    fn place(&self, span: Range<usize>) -> Place {
        let before = &self.text.as_bytes()[..span.start.min(self.text.len())];
        let line = 1 + before.iter().filter(|b| **b == b'\n').count();
        Place::Line { file: Arc::clone(&self.file), line }
    }
}

/// Reads a whole document. Each setting's place is the line of its key, an array item's the line
/// it starts on.
///
/// # Errors
/// Every error of syntax, or every value of a type that no setting has.
pub(super) fn parse(text: &str, file: &str) -> Result<BTreeMap<String, Setting>, Vec<Problem>> {
    let source = Source { text, file: file.into() };
    let (document, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        return Err(errors
            .iter()
            .map(|e| Problem {
                place: source.place(e.span().unwrap_or(0..0)),
                key: "syntax".to_owned(),
                what: format!("is no TOML: {}", e.message().trim_end()),
            })
            .collect());
    }
    let mut problems = Vec::new();
    let table = convert_table(document.into_inner(), "", &source, &mut problems);
    if problems.is_empty() { Ok(table) } else { Err(problems) }
}

/// Reads one value, as an environment variable holds it; `None` when it is no TOML value.
pub(super) fn parse_value(text: &str, place: &Place) -> Option<Setting> {
    let value = DeValue::parse(text).ok()?;
    let source = Source { text, file: "".into() };
    let mut problems = Vec::new();
    let mut setting = convert(value.into_inner(), place.clone(), "", &source, &mut problems)?;
    replace_places(&mut setting, place);
    problems.is_empty().then_some(setting)
}

/// What stands in a variable has no line of its own.
fn replace_places(setting: &mut Setting, place: &Place) {
    setting.place = place.clone();
    match &mut setting.value {
        Value::Array(items) => items.iter_mut().for_each(|item| replace_places(item, place)),
        Value::Table(table) => table.values_mut().for_each(|item| replace_places(item, place)),
        _ => {}
    }
}

fn convert_table(
    table: DeTable<'_>,
    path: &str,
    source: &Source<'_>,
    problems: &mut Vec<Problem>,
) -> BTreeMap<String, Setting> {
    let mut settings = BTreeMap::new();
    for (key, value) in table {
        let place = source.place(key.span());
        let key = key.into_inner().into_owned();
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        if let Some(setting) = convert(value.into_inner(), place, &path, source, problems) {
            settings.insert(key, setting);
        }
    }
    settings
}

fn convert(
    value: DeValue<'_>,
    place: Place,
    path: &str,
    source: &Source<'_>,
    problems: &mut Vec<Problem>,
) -> Option<Setting> {
    let mut refuse = |what: &str| {
        problems.push(Problem {
            place: place.clone(),
            key: path.to_owned(),
            what: what.to_owned(),
        });
        None
    };
    let value = match value {
        DeValue::String(text) => Value::String(text.into_owned()),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Value::Integer(number),
            Err(_) => return refuse("is an integer of more than 64 bits"),
        },
        DeValue::Float(number) => match number.as_str().parse::<f64>() {
            Ok(number) if number.is_finite() => Value::Float(number),
            _ => return refuse("is no finite number"),
        },
        DeValue::Boolean(b) => Value::Boolean(b),
        DeValue::Datetime(_) => {
            return refuse("is a date or time, which no setting is; put it in quotation marks");
        }
        DeValue::Array(items) => {
            let mut settings = Vec::with_capacity(items.len());
            for (at, item) in items.into_iter().enumerate() {
                let place = source.place(item.span());
                let path = format!("{path}[{at}]");
                settings.extend(convert(item.into_inner(), place, &path, source, problems));
            }
            Value::Array(settings)
        }
        DeValue::Table(table) => Value::Table(convert_table(table, path, source, problems)),
    };
    Some(Setting { value, place })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(setting: &Setting) -> usize {
        match &setting.place {
            Place::Line { line, .. } => *line,
            other => panic!("{other:?}"),
        }
    }

    fn within<'a>(setting: &'a Setting, key: &str) -> &'a Setting {
        match &setting.value {
            Value::Table(table) => &table[key],
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_setting_knows_the_line_of_its_key() {
        let text = "\n[server]\nlisten = \"x\"\n\n[announcers.a]\nn = 0x1F\nlist = [\n  1,\n  2,\n]\n\n[[routes]]\nname = \"r\"\n\n[[routes]]\nname = 'é'\n";
        let table = parse(text, "f.toml").unwrap();
        assert_eq!(line(&table["server"]), 2);
        assert_eq!(line(within(&table["server"], "listen")), 3);
        let a = within(&table["announcers"], "a");
        assert_eq!(line(a), 5);
        assert!(matches!(within(a, "n").value, Value::Integer(31)));
        let Value::Array(items) = &within(a, "list").value else { panic!() };
        assert_eq!(items.iter().map(line).collect::<Vec<_>>(), [8, 9]);
        let Value::Array(routes) = &table["routes"].value else { panic!() };
        assert_eq!(routes.iter().map(line).collect::<Vec<_>>(), [12, 15]);
        assert_eq!(line(within(&routes[1], "name")), 16);
    }

    #[test]
    fn errors_of_syntax_name_their_line_all_at_once() {
        let problems = parse("a = 1\nb = \nc = 3\nc = 4\n", "f.toml").unwrap_err();
        let lines: Vec<_> = problems.iter().map(|p| p.place.to_string()).collect();
        assert_eq!(lines, ["f.toml:2", "f.toml:4"]);
    }

    #[test]
    fn values_that_no_setting_has_are_refused_by_name() {
        let problems =
            parse("[a]\nd = 2026-01-01\nf = inf\nn = 99999999999999999999\n", "f").unwrap_err();
        let texts: Vec<_> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "f:2: a.d: is a date or time, which no setting is; put it in quotation marks",
                "f:3: a.f: is no finite number",
                "f:4: a.n: is an integer of more than 64 bits",
            ]
        );
    }
}
