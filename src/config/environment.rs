//! Any key by environment variable: `ANSWERBACK_SERVER__PUBLIC_URL` (contract, section 7).

use super::document::parse_value;
use answerback_contract::settings::{Place, Problem, Setting, Value};
use std::collections::BTreeMap;

/// What every variable starts with.
const PREFIX: &str = "ANSWERBACK_";

/// Lays the variables over the settings of a file. Only names with a double underscore count:
/// sections are parted by it. Names within the file are met in any letter case, with `_` for every
/// character that a variable cannot have; an array's items by number from 0 or by their `name`.
pub(super) fn overlay(
    table: &mut BTreeMap<String, Setting>,
    variables: &BTreeMap<String, String>,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    // In the order of names a table comes before the keys within it, so that both may be given.
    for (name, text) in variables {
        let Some(path) = name.strip_prefix(PREFIX).filter(|rest| rest.contains("__")) else {
            continue;
        };
        let segments: Vec<&str> = path.split("__").collect();
        let place = Place::Variable(name.as_str().into());
        if segments.iter().any(|s| s.is_empty()) {
            problems.push(Problem {
                place,
                key: path.to_ascii_lowercase(),
                what: "names no key: a section's name is empty; write ANSWERBACK_SECTION__KEY"
                    .to_owned(),
            });
            continue;
        }
        let setting = value_of(text, &segments, &place);
        if let Err(what) = insert(table, &segments, setting, &place) {
            let key = segments.join(".").to_ascii_lowercase();
            problems.push(Problem { place, key, what });
        }
    }
    problems
}

/// Quoted strings, arrays and tables are read as TOML. What is left is a string, as it stands: the
/// settings that want a number or a boolean read it out of one. Only in what tags are compared
/// with does the type count, so there bare numbers and booleans are read as such.
fn value_of(text: &str, segments: &[&str], place: &Place) -> Setting {
    let typed = segments.iter().any(|s| s.eq_ignore_ascii_case("match"));
    let structured = text.trim_start().starts_with(['[', '{', '"', '\'']);
    (typed || structured)
        .then(|| parse_value(text.trim(), place))
        .flatten()
        .unwrap_or_else(|| Setting { value: Value::String(text.to_owned()), place: place.clone() })
}

fn insert(
    table: &mut BTreeMap<String, Setting>,
    segments: &[&str],
    setting: Setting,
    place: &Place,
) -> Result<(), String> {
    let [segment, rest @ ..] = segments else { return Ok(()) };
    let key = table
        .keys()
        .find(|key| same_name(key, segment))
        .cloned()
        .unwrap_or_else(|| segment.to_ascii_lowercase());
    if rest.is_empty() {
        table.insert(key, setting);
        return Ok(());
    }
    let within = table
        .entry(key.clone())
        .or_insert_with(|| Setting { value: Value::Table(BTreeMap::new()), place: place.clone() });
    match &mut within.value {
        Value::Table(table) => insert(table, rest, setting, place),
        Value::Array(items) => insert_item(items, rest, setting, place),
        _ => Err(format!("cannot be set: {key} is no table ({})", within.place)),
    }
}

fn insert_item(
    items: &mut Vec<Setting>,
    segments: &[&str],
    setting: Setting,
    place: &Place,
) -> Result<(), String> {
    let [segment, rest @ ..] = segments else { return Ok(()) };
    let named = |item: &Setting| match &item.value {
        Value::Table(table) => table.get("name").is_some_and(
            |name| matches!(&name.value, Value::String(name) if same_name(name, segment)),
        ),
        _ => false,
    };
    let at = match segment.parse::<usize>() {
        Ok(at) if at <= items.len() => at,
        Ok(at) => {
            return Err(format!(
                "cannot be set: there are {} items, none is number {at}",
                items.len()
            ));
        }
        Err(_) => items.iter().position(named).ok_or_else(|| {
            format!("cannot be set: no item has the name {:?}", segment.to_ascii_lowercase())
        })?,
    };
    if at == items.len() {
        items.push(Setting { value: Value::Table(BTreeMap::new()), place: place.clone() });
    }
    let item = &mut items[at];
    match &mut item.value {
        _ if rest.is_empty() => *item = setting,
        Value::Table(table) => return insert(table, rest, setting, place),
        _ => return Err(format!("cannot be set: item {at} is no table ({})", item.place)),
    }
    Ok(())
}

/// Whether a variable's part means a key of the file.
fn same_name(key: &str, segment: &str) -> bool {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
    key.chars().map(plain).eq(segment.chars().map(plain))
}

#[cfg(test)]
mod tests {
    use super::super::document::parse;
    use super::*;

    fn overlaid(
        text: &str,
        variables: &[(&str, &str)],
    ) -> (BTreeMap<String, Setting>, Vec<String>) {
        let mut table = parse(text, "f.toml").unwrap();
        let variables = variables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let problems = overlay(&mut table, &variables);
        (table, problems.iter().map(ToString::to_string).collect())
    }

    fn get<'a>(table: &'a BTreeMap<String, Setting>, path: &str) -> &'a Setting {
        let mut segments = path.split('/');
        let mut setting = &table[segments.next().unwrap()];
        for segment in segments {
            setting = match &setting.value {
                Value::Table(table) => &table[segment],
                Value::Array(items) => &items[segment.parse::<usize>().unwrap()],
                other => panic!("{other:?}"),
            };
        }
        setting
    }

    fn string<'a>(table: &'a BTreeMap<String, Setting>, path: &str) -> &'a str {
        match &get(table, path).value {
            Value::String(text) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_variable_sets_a_key_and_is_its_place() {
        let (table, problems) =
            overlaid("[server]\nlisten = \"a\"\n", &[("ANSWERBACK_SERVER__LISTEN", "[::1]:80")]);
        assert!(problems.is_empty());
        assert_eq!(string(&table, "server/listen"), "[::1]:80", "no TOML array, so a string");
        assert_eq!(
            get(&table, "server/listen").place.to_string(),
            "environment variable ANSWERBACK_SERVER__LISTEN"
        );
    }

    #[test]
    fn names_with_one_underscore_are_not_ours() {
        let (table, problems) =
            overlaid("", &[("ANSWERBACK_URL", "x"), ("ANSWERBACK_LINK_KEY", "y"), ("A__B", "z")]);
        assert!(table.is_empty() && problems.is_empty());
    }

    #[test]
    fn names_of_the_file_are_met_in_any_letter_case_and_with_underscores() {
        let (table, problems) = overlaid(
            "[announcers.Finance-EU]\ntype = \"sqs\"\n[[routes]]\nname = \"my-host\"\n",
            &[
                ("ANSWERBACK_ANNOUNCERS__FINANCE_EU__REGION", "eu"),
                ("ANSWERBACK_ANNOUNCERS__NEW__TYPE", "log"),
                ("ANSWERBACK_ROUTES__MY_HOST__URL", "u"),
                ("ANSWERBACK_ROUTES__0__TYPE", "http"),
                ("ANSWERBACK_ROUTES__1__NAME", "second"),
            ],
        );
        assert_eq!(problems, Vec::<String>::new());
        assert_eq!(string(&table, "announcers/Finance-EU/region"), "eu");
        assert_eq!(string(&table, "announcers/new/type"), "log");
        assert_eq!(string(&table, "routes/0/url"), "u");
        assert_eq!(string(&table, "routes/0/type"), "http");
        assert_eq!(string(&table, "routes/1/name"), "second");
    }

    #[test]
    fn tables_and_arrays_are_read_as_toml_and_may_be_extended() {
        let (table, _) = overlaid(
            "",
            &[
                ("ANSWERBACK_SERVER__TLS", "{ cert_file = \"c\" }"),
                ("ANSWERBACK_SERVER__TLS__KEY_FILE", "k"),
                ("ANSWERBACK_ANNOUNCERS__A__MATCH__TAGS__N", "5"),
                ("ANSWERBACK_ANNOUNCERS__A__MAX_IN_FLIGHT", "5"),
                ("ANSWERBACK_AUTH__KEYS", "[{ name = \"a\" }]"),
                ("ANSWERBACK_TELEMETRY__LOG", "\"debug\""),
            ],
        );
        assert_eq!(string(&table, "server/tls/cert_file"), "c");
        assert_eq!(string(&table, "server/tls/key_file"), "k");
        assert!(matches!(get(&table, "announcers/a/match/tags/n").value, Value::Integer(5)));
        assert_eq!(string(&table, "announcers/a/max_in_flight"), "5");
        assert_eq!(string(&table, "auth/keys/0/name"), "a");
        assert_eq!(
            get(&table, "auth/keys/0/name").place.to_string(),
            "environment variable ANSWERBACK_AUTH__KEYS"
        );
        assert_eq!(string(&table, "telemetry/log"), "debug");
    }

    #[test]
    fn what_cannot_be_set_is_a_problem() {
        let (_, problems) = overlaid(
            "a = 1\n[[routes]]\nname = \"r\"\n",
            &[
                ("ANSWERBACK_A__B", "x"),
                ("ANSWERBACK_ROUTES__7__URL", "x"),
                ("ANSWERBACK_ROUTES__NONE__URL", "x"),
                ("ANSWERBACK_SERVER____X", "x"),
            ],
        );
        assert_eq!(
            problems,
            [
                "environment variable ANSWERBACK_A__B: a.b: cannot be set: a is no table (f.toml:1)",
                "environment variable ANSWERBACK_ROUTES__7__URL: routes.7.url: cannot be set: there are 1 items, none is number 7",
                "environment variable ANSWERBACK_ROUTES__NONE__URL: routes.none.url: cannot be set: no item has the name \"none\"",
                "environment variable ANSWERBACK_SERVER____X: server____x: names no key: a section's name is empty; write ANSWERBACK_SECTION__KEY",
            ]
        );
    }
}
