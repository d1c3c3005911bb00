//! What the readers of the sections share.

use crate::registry::Registry;
use answerback_contract::TenantId;
use answerback_contract::settings::{Place, Problem, SecretStore, Setting, Settings, Value};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The most characters of a name.
const MAX_NAME: usize = 64;

/// One reading of a configuration.
pub(super) struct Reading<'a> {
    pub(super) registry: &'a Registry,
    pub(super) secrets: Arc<dyn SecretStore>,
    /// Relative names of files start there.
    pub(super) base: PathBuf,
    pub(super) problems: Vec<Problem>,
    /// What is not wrong but should be known.
    pub(super) notes: Vec<Problem>,
}

impl Reading<'_> {
    /// Reads a section with `read` and takes over its problems; an absent one is empty.
    pub(super) fn section<T>(
        &mut self,
        root: &mut Settings,
        key: &'static str,
        read: impl FnOnce(&mut Settings, &mut Self) -> T,
    ) -> T {
        let place = root.place_of(key);
        let mut section =
            root.table(key).unwrap_or_else(|| self.settings(key, place, Default::default()));
        let value = read(&mut section, self);
        self.finish(section);
        value
    }

    /// Reads a table within a table; `None` when it is absent or no table.
    pub(super) fn within<T>(
        &mut self,
        settings: &mut Settings,
        key: &'static str,
        read: impl FnOnce(&mut Settings, &mut Self) -> T,
    ) -> Option<T> {
        let mut table = settings.table(key)?;
        let value = read(&mut table, self);
        self.finish(table);
        Some(value)
    }

    /// The tables of an array, each with the path `key[n]` within its parent's.
    pub(super) fn items(&mut self, settings: &mut Settings, key: &'static str) -> Vec<Settings> {
        let Some(setting) = settings.take(key) else { return Vec::new() };
        let path = match settings.path() {
            "" => key.to_owned(),
            path => format!("{path}.{key}"),
        };
        let Value::Array(items) = setting.value else {
            settings.problem(key, setting.place, "must be an array of tables");
            return Vec::new();
        };
        let tables = items.into_iter().enumerate();
        tables.filter_map(|(at, item)| self.as_table(format!("{path}[{at}]"), item)).collect()
    }

    /// A setting that must be a table.
    pub(super) fn as_table(&mut self, path: String, setting: Setting) -> Option<Settings> {
        match setting.value {
            Value::Table(table) => Some(self.settings(&path, setting.place, table)),
            _ => {
                let what = "must be a table".to_owned();
                self.problems.push(Problem { place: setting.place, key: path, what });
                None
            }
        }
    }

    fn settings(
        &self,
        path: &str,
        place: Place,
        table: std::collections::BTreeMap<String, Setting>,
    ) -> Settings {
        Settings::new(path, place, table, Arc::clone(&self.secrets))
    }

    /// Ends the reading of a table.
    pub(super) fn finish(&mut self, settings: Settings) {
        if let Err(problems) = settings.finish() {
            self.problems.extend(problems);
        }
    }

    /// Notes something about a key that is taken but does less than it says.
    pub(super) fn note(&mut self, settings: &Settings, key: &str, what: &str) {
        if settings.has(key) {
            let place = settings.place_of(key);
            let key = format!("{}.{key}", settings.path());
            self.notes.push(Problem { place, key, what: what.to_owned() });
        }
    }

    /// A file's name as seen from the configuration file, which must be readable.
    pub(super) fn file(&mut self, settings: &mut Settings, key: &'static str) -> PathBuf {
        let place = settings.place_of(key);
        let name = settings.required_string(key, "the name of a file");
        if !name.is_empty()
            && let Err(e) = self.secrets.file(&name)
        {
            settings.problem(key, place, format!("the file {name} cannot be read: {e}"));
        }
        self.base.join(Path::new(&name))
    }
}

/// A setting read out of a string; `read` says what is wrong with it and what would be right.
pub(super) fn parsed<T>(
    settings: &mut Settings,
    key: &'static str,
    read: impl FnOnce(&str) -> Result<T, String>,
) -> Option<T> {
    let place = settings.place_of(key);
    let text = settings.string(key)?;
    match read(&text) {
        Ok(value) => Some(value),
        Err(what) => {
            settings.problem(key, place, what);
            None
        }
    }
}

/// A duration of at most `most`.
pub(super) fn duration_to(
    settings: &mut Settings,
    key: &'static str,
    most: Duration,
) -> Option<Duration> {
    let place = settings.place_of(key);
    let duration = settings.duration(key)?;
    if duration > most {
        let what = format!("is longer than the {} s that are taken at most", most.as_secs());
        settings.problem(key, place, what);
        return None;
    }
    Some(duration)
}

/// One string or an array of them, one at least.
pub(super) fn one_or_many(settings: &mut Settings, key: &'static str) -> Vec<String> {
    let Some(setting) = settings.take(key) else { return Vec::new() };
    let items = match setting.value {
        Value::Array(items) if items.is_empty() => {
            settings.problem(key, setting.place, "is empty; name one at least, or take it out");
            return Vec::new();
        }
        Value::Array(items) => items,
        Value::String(text) => return vec![text],
        _ => {
            settings.problem(key, setting.place, "must be a string or an array of strings");
            return Vec::new();
        }
    };
    let mut texts = Vec::with_capacity(items.len());
    for item in items {
        match item.value {
            Value::String(text) => texts.push(text),
            _ => settings.problem(key, item.place, "has an item that is no string"),
        }
    }
    texts
}

/// Refuses a key that this version does not carry out, instead of doing nothing in silence.
pub(super) fn not_supported(settings: &mut Settings, key: &'static str) {
    if let Some(setting) = settings.take(key)
        && !matches!(setting.value, Value::Boolean(false))
    {
        settings.problem(key, setting.place, "is not supported by this version; take it out");
    }
}

/// Checks a name of an announcer, a route, a key or a tenant.
pub(super) fn check_name(text: &str) -> Result<(), String> {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if text.is_empty() || text.len() > MAX_NAME || !text.chars().all(known) {
        return Err(format!("{text:?} is no name; use 1 to {MAX_NAME} letters, digits, - and _"));
    }
    Ok(())
}

/// `tenant`, else the default one.
pub(super) fn tenant(settings: &mut Settings) -> TenantId {
    let read = |text: &str| {
        check_name(text)?;
        TenantId::new(text).map_err(|e| e.to_string())
    };
    parsed(settings, "tenant", read).unwrap_or_else(TenantId::default_tenant)
}
