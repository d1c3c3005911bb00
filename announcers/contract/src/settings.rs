//! One table of the configuration, read key by key so that every problem names its place and cure.
//!
//! The daemon turns TOML and environment variables into [`Settings`]; a [`crate::Kind`] takes its
//! keys out of it. What nobody took is an unknown key.

use crate::duration;
use secrecy::SecretString;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Where a setting stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// A line of a file, from 1.
    Line {
        /// The file as it was named.
        file: Arc<str>,
        /// From 1.
        line: usize,
    },
    /// An environment variable.
    Variable(Arc<str>),
    /// Nowhere: a default.
    BuiltIn,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line { file, line } => write!(f, "{file}:{line}"),
            Self::Variable(name) => write!(f, "environment variable {name}"),
            Self::BuiltIn => f.write_str("built-in defaults"),
        }
    }
}

/// Something wrong in the configuration: where, what, and what would be right.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{place}: {key}: {what}")]
pub struct Problem {
    /// Where.
    pub place: Place,
    /// The full key, such as `announcers.finance.queue_url`.
    pub key: String,
    /// What is wrong and what would be right.
    pub what: String,
}

/// A value as the configuration has it.
#[derive(Clone, Debug)]
pub enum Value {
    /// A string.
    String(String),
    /// An integer.
    Integer(i64),
    /// A float.
    Float(f64),
    /// A boolean.
    Boolean(bool),
    /// An array.
    Array(Vec<Setting>),
    /// A table.
    Table(BTreeMap<String, Setting>),
}

impl Value {
    fn type_name(&self) -> &'static str {
        match self {
            Self::String(_) => "a string",
            Self::Integer(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Boolean(_) => "a boolean",
            Self::Array(_) => "an array",
            Self::Table(_) => "a table",
        }
    }
}

/// A value and its place.
#[derive(Clone, Debug)]
pub struct Setting {
    /// What.
    pub value: Value,
    /// Where.
    pub place: Place,
}

impl Setting {
    /// Whether it comes from where everything is text.
    fn is_untyped(&self) -> bool {
        matches!(self.place, Place::Variable(_))
    }
}

/// Gives the content of environment variables and files, so that reading settings stays pure.
pub trait SecretStore: Send + Sync {
    /// The value of an environment variable.
    fn variable(&self, name: &str) -> Option<String>;

    /// The content of a file, relative names as the configuration file sees them.
    ///
    /// # Errors
    /// The system's reason.
    fn file(&self, path: &str) -> Result<String, std::io::Error>;
}

/// One table of the configuration.
pub struct Settings {
    path: String,
    place: Place,
    table: BTreeMap<String, Setting>,
    known: Vec<&'static str>,
    problems: Vec<Problem>,
    secrets: Arc<dyn SecretStore>,
}

impl Settings {
    /// A table at `path` (such as `announcers.finance`).
    #[must_use]
    pub fn new(
        path: impl Into<String>,
        place: Place,
        table: BTreeMap<String, Setting>,
        secrets: Arc<dyn SecretStore>,
    ) -> Self {
        Self { path: path.into(), place, table, known: Vec::new(), problems: Vec::new(), secrets }
    }

    /// The table's path.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether the key is there; does not take it.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Where a key stands, or its table when it is not there. Ask before the key is taken.
    #[must_use]
    pub fn place_of(&self, key: &str) -> Place {
        self.table.get(key).map_or_else(|| self.place.clone(), |setting| setting.place.clone())
    }

    /// Takes a key as it is.
    pub fn take(&mut self, key: &'static str) -> Option<Setting> {
        self.known.push(key);
        self.table.remove(key)
    }

    /// Takes every key that nobody took: for tables whose keys are another system's own.
    pub fn take_rest(&mut self) -> BTreeMap<String, Setting> {
        std::mem::take(&mut self.table)
    }

    /// Adds a problem at a key.
    pub fn problem(&mut self, key: &str, place: Place, what: impl Into<String>) {
        let key = match (self.path.is_empty(), key.is_empty()) {
            (true, _) => key.to_owned(),
            (false, true) => self.path.clone(),
            (false, false) => format!("{}.{key}", self.path),
        };
        self.problems.push(Problem { place, key, what: what.into() });
    }

    fn wrong_type(&mut self, key: &str, setting: &Setting, wanted: &str) {
        let what = format!("is {}, but must be {wanted}", setting.value.type_name());
        self.problem(key, setting.place.clone(), what);
    }

    /// Notes that a required key is missing.
    pub fn missing(&mut self, key: &str, wanted: &str) {
        let place = self.place.clone();
        self.problem(key, place, format!("is missing; give {wanted}"));
    }

    /// A string.
    pub fn string(&mut self, key: &'static str) -> Option<String> {
        let setting = self.take(key)?;
        match setting.value {
            Value::String(text) => Some(text),
            _ => {
                self.wrong_type(key, &setting, "a string");
                None
            }
        }
    }

    /// A string that must be there; empty after noting the problem when it is not.
    pub fn required_string(&mut self, key: &'static str, wanted: &str) -> String {
        let there = self.has(key);
        let place = self.place_of(key);
        match self.string(key) {
            Some(text) if !text.is_empty() => text,
            Some(_) => {
                self.problem(key, place, format!("is empty; give {wanted}"));
                String::new()
            }
            None => {
                if !there {
                    self.missing(key, wanted);
                }
                String::new()
            }
        }
    }

    /// A string out of a fixed set, mapped.
    pub fn choice<T: Clone>(&mut self, key: &'static str, choices: &[(&str, T)]) -> Option<T> {
        let setting = self.take(key)?;
        let Value::String(text) = &setting.value else {
            self.wrong_type(key, &setting, "a string");
            return None;
        };
        let found = choices.iter().find(|(name, _)| name == text).map(|(_, v)| v.clone());
        if found.is_none() {
            let names: Vec<_> = choices.iter().map(|(name, _)| format!("{name:?}")).collect();
            self.problem(
                key,
                setting.place.clone(),
                format!("must be one of {}", names.join(", ")),
            );
        }
        found
    }

    /// A boolean. Environment variables have no types, so one may spell it.
    pub fn boolean(&mut self, key: &'static str) -> Option<bool> {
        let setting = self.take(key)?;
        match &setting.value {
            Value::Boolean(b) => Some(*b),
            Value::String(s) if setting.is_untyped() && (s == "true" || s == "false") => {
                Some(s == "true")
            }
            _ => {
                self.wrong_type(key, &setting, "true or false");
                None
            }
        }
    }

    /// An integer within bounds, both included. Environment variables have no types, so one may
    /// spell it.
    pub fn integer(&mut self, key: &'static str, least: i64, most: i64) -> Option<i64> {
        let setting = self.take(key)?;
        let number = match &setting.value {
            Value::Integer(n) => *n,
            Value::String(s) if setting.is_untyped() && s.parse::<i64>().is_ok() => {
                s.parse().unwrap_or(least)
            }
            _ => {
                self.wrong_type(key, &setting, "an integer");
                return None;
            }
        };
        if !(least..=most).contains(&number) {
            self.problem(
                key,
                setting.place,
                format!("is {number}, but must be from {least} to {most}"),
            );
            return None;
        }
        Some(number)
    }

    /// A count from 1 to `most`.
    pub fn count(&mut self, key: &'static str, most: usize) -> Option<usize> {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        self.integer(key, 1, most).and_then(|n| usize::try_from(n).ok())
    }

    /// A duration: `"20s"`, `"5m"`, `"24h"` or ISO 8601.
    pub fn duration(&mut self, key: &'static str) -> Option<Duration> {
        let setting = self.take(key)?;
        let Value::String(text) = &setting.value else {
            self.wrong_type(key, &setting, "a duration such as \"20s\" or \"PT20S\"");
            return None;
        };
        match duration::parse_setting(text) {
            Ok(duration) => Some(duration),
            Err(e) => {
                self.problem(key, setting.place.clone(), format!("{text:?} {e}"));
                None
            }
        }
    }

    /// An array of strings.
    pub fn strings(&mut self, key: &'static str) -> Option<Vec<String>> {
        let setting = self.take(key)?;
        let Value::Array(items) = &setting.value else {
            self.wrong_type(key, &setting, "an array of strings");
            return None;
        };
        let mut texts = Vec::with_capacity(items.len());
        for item in items {
            match &item.value {
                Value::String(text) => texts.push(text.clone()),
                _ => self.wrong_type(key, item, "a string"),
            }
        }
        Some(texts)
    }

    /// A table of strings.
    pub fn string_table(&mut self, key: &'static str) -> Option<BTreeMap<String, String>> {
        let setting = self.take(key)?;
        let Value::Table(table) = &setting.value else {
            self.wrong_type(key, &setting, "a table of strings");
            return None;
        };
        let mut texts = BTreeMap::new();
        for (name, item) in table {
            match &item.value {
                Value::String(text) => {
                    texts.insert(name.clone(), text.clone());
                }
                _ => self.wrong_type(key, item, "a string"),
            }
        }
        Some(texts)
    }

    /// A table within, to be read and finished by the caller and given back to [`Self::absorb`].
    pub fn table(&mut self, key: &'static str) -> Option<Self> {
        let setting = self.take(key)?;
        let Value::Table(table) = setting.value else {
            self.wrong_type(key, &setting, "a table");
            return None;
        };
        let path =
            if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) };
        Some(Self::new(path, setting.place, table, Arc::clone(&self.secrets)))
    }

    /// Finishes a table within and takes over its problems.
    pub fn absorb(&mut self, within: Self) {
        if let Err(problems) = within.finish() {
            self.problems.extend(problems);
        }
    }

    /// Takes over problems found elsewhere.
    pub fn extend(&mut self, problems: Vec<Problem>) {
        self.problems.extend(problems);
    }

    /// A secret by `<key>_env` or `<key>_file`. A secret in the clear under `<key>` is refused.
    /// The final line break of a file does not count. An empty secret is refused.
    pub fn secret(
        &mut self,
        env_key: &'static str,
        file_key: &'static str,
    ) -> Option<SecretString> {
        let plain = env_key.strip_suffix("_env").unwrap_or(env_key);
        if let Some(setting) = self.table.remove(plain) {
            self.problem(
                plain,
                setting.place,
                format!("a secret must not stand in the configuration; name an environment variable by {env_key} or a file by {file_key}"),
            );
        }
        let place = |s: &Self, key: &str| s.table.get(key).map(|s| s.place.clone());
        let env_place = place(self, env_key);
        let file_place = place(self, file_key);
        let variable = self.string(env_key);
        let path = self.string(file_key);
        match (variable, path) {
            (Some(_), Some(_)) => {
                let at = file_place.unwrap_or(Place::BuiltIn);
                self.problem(file_key, at, format!("stands beside {env_key}; keep one of them"));
                None
            }
            (Some(name), None) => {
                let at = env_place.unwrap_or(Place::BuiltIn);
                match self.secrets.variable(&name) {
                    Some(value) if !value.is_empty() => Some(value.into()),
                    Some(_) => {
                        self.problem(
                            env_key,
                            at,
                            format!(
                                "the environment variable {name} is empty; set it to the secret"
                            ),
                        );
                        None
                    }
                    None => {
                        self.problem(
                            env_key,
                            at,
                            format!(
                                "the environment variable {name} is not set; set it to the secret"
                            ),
                        );
                        None
                    }
                }
            }
            (None, Some(path)) => {
                let at = file_place.unwrap_or(Place::BuiltIn);
                match self.secrets.file(&path) {
                    Ok(text) => {
                        let text = text.strip_suffix('\n').unwrap_or(&text);
                        let text = text.strip_suffix('\r').unwrap_or(text);
                        if text.is_empty() {
                            self.problem(
                                file_key,
                                at,
                                format!("the file {path} is empty; put the secret into it"),
                            );
                            return None;
                        }
                        Some(text.to_owned().into())
                    }
                    Err(e) => {
                        self.problem(file_key, at, format!("the file {path} cannot be read: {e}"));
                        None
                    }
                }
            }
            (None, None) => None,
        }
    }

    /// Whether problems were noted so far.
    #[must_use]
    pub fn has_problems(&self) -> bool {
        !self.problems.is_empty()
    }

    /// Gives out the problems noted so far.
    pub fn take_problems(&mut self) -> Vec<Problem> {
        std::mem::take(&mut self.problems)
    }

    /// Ends reading: every key that nobody took is unknown.
    ///
    /// # Errors
    /// All problems of this table.
    pub fn finish(mut self) -> Result<(), Vec<Problem>> {
        for (key, setting) in std::mem::take(&mut self.table) {
            let near = self
                .known
                .iter()
                .map(|known| (strsim::damerau_levenshtein(known, &key), *known))
                .min()
                .filter(|(distance, _)| *distance <= 3);
            let what = match near {
                Some((_, known)) => format!("is no key of this table; did you mean {known:?}?"),
                None => {
                    let mut known = self.known.clone();
                    known.sort_unstable();
                    known.dedup();
                    format!("is no key of this table; it takes {}", known.join(", "))
                }
            };
            self.problem(&key, setting.place, what);
        }
        if self.problems.is_empty() { Ok(()) } else { Err(self.problems) }
    }
}

/// For the tests of announcers: settings from plain values, secrets from a map.
pub mod testing {
    use super::{Place, SecretStore, Setting, Settings, Value};
    use std::collections::BTreeMap;
    use std::sync::Arc;

    /// Secrets that stand in a map; files are named `file:<path>` there.
    #[derive(Default, Clone, Debug)]
    pub struct MapSecrets(pub BTreeMap<String, String>);

    impl SecretStore for MapSecrets {
        fn variable(&self, name: &str) -> Option<String> {
            self.0.get(name).cloned()
        }

        fn file(&self, path: &str) -> Result<String, std::io::Error> {
            self.0
                .get(&format!("file:{path}"))
                .cloned()
                .ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotFound))
        }
    }

    /// A setting on line 1 of `test.toml`.
    #[must_use]
    pub fn setting(value: Value) -> Setting {
        Setting { value, place: Place::Line { file: "test.toml".into(), line: 1 } }
    }

    /// A string setting.
    #[must_use]
    pub fn text(value: &str) -> Setting {
        setting(Value::String(value.to_owned()))
    }

    /// A table `announcers.test` of these settings.
    #[must_use]
    pub fn settings(pairs: Vec<(&str, Setting)>, secrets: MapSecrets) -> Settings {
        let table = pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        let place = Place::Line { file: "test.toml".into(), line: 1 };
        Settings::new("announcers.test", place, table, Arc::new(secrets))
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{MapSecrets, setting, settings, text};
    use super::*;

    #[test]
    fn an_unknown_key_names_the_nearest_known_one() {
        let mut s = settings(vec![("quue_url", text("x"))], MapSecrets::default());
        assert_eq!(s.string("queue_url"), None);
        let problems = s.finish().unwrap_err();
        assert_eq!(
            problems[0].to_string(),
            "test.toml:1: announcers.test.quue_url: is no key of this table; did you mean \"queue_url\"?"
        );
    }

    #[test]
    fn a_secret_comes_from_a_variable_or_a_file_and_never_stands_in_the_clear() {
        use secrecy::ExposeSecret;
        let secrets = MapSecrets(
            [("S".to_owned(), "one".to_owned()), ("file:f".to_owned(), "two\n".to_owned())].into(),
        );
        let mut s = settings(vec![("secret_env", text("S"))], secrets.clone());
        assert_eq!(s.secret("secret_env", "secret_file").unwrap().expose_secret(), "one");
        let mut s = settings(vec![("secret_file", text("f"))], secrets.clone());
        assert_eq!(s.secret("secret_env", "secret_file").unwrap().expose_secret(), "two");
        let mut s = settings(vec![("secret", text("plain"))], secrets.clone());
        assert!(s.secret("secret_env", "secret_file").is_none());
        assert!(s.finish().unwrap_err()[0].what.contains("must not stand"));
        let mut s = settings(vec![("secret_env", text("NONE"))], secrets);
        assert!(s.secret("secret_env", "secret_file").is_none());
        assert!(s.finish().unwrap_err()[0].what.contains("NONE is not set"));
    }

    #[test]
    fn only_variables_may_spell_numbers_and_booleans() {
        let spelt = |place: Place| {
            let spell = |text: &str| Setting {
                value: Value::String(text.to_owned()),
                place: place.clone(),
            };
            let pairs = vec![("n", spell("32")), ("b", spell("true"))];
            let mut s = settings(pairs, MapSecrets::default());
            let read = (s.integer("n", 1, 99), s.boolean("b"));
            (read, s.take_problems().iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let (read, problems) = spelt(Place::Variable("ANSWERBACK_A__N".into()));
        assert_eq!((read, problems.len()), ((Some(32), Some(true)), 0));
        let (read, problems) = spelt(Place::Line { file: "f.toml".into(), line: 3 });
        assert_eq!(read, (None, None));
        assert_eq!(
            problems,
            [
                "f.toml:3: announcers.test.n: is a string, but must be an integer",
                "f.toml:3: announcers.test.b: is a string, but must be true or false",
            ]
        );
    }

    #[test]
    fn an_empty_string_is_told_at_its_own_line() {
        let empty = Setting {
            value: Value::String(String::new()),
            place: Place::Line { file: "f.toml".into(), line: 7 },
        };
        let mut s = settings(vec![("brokers", empty)], MapSecrets::default());
        assert_eq!(s.required_string("brokers", "\"host:port\""), "");
        assert_eq!(
            s.finish().unwrap_err()[0].to_string(),
            "f.toml:7: announcers.test.brokers: is empty; give \"host:port\""
        );
    }

    #[test]
    fn a_wrong_type_says_what_would_be_right() {
        let mut s = settings(vec![("n", setting(Value::Float(1.5)))], MapSecrets::default());
        assert_eq!(s.integer("n", 1, 5), None);
        assert!(
            s.finish().unwrap_err()[0].to_string().ends_with("is a float, but must be an integer")
        );
    }
}
