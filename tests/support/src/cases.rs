//! The captures of agent-wait in `tests/cases/envelopes`.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// One capture.
#[derive(Clone, Debug)]
pub struct Case {
    /// The file's name without `.json`, such as `001-lg-wait-tool-finance`.
    pub name: String,
    /// The whole file, `"@envelope_raw"` replaced by that text.
    pub all: Value,
    /// The exact body; `None` where agent-wait sent nothing.
    pub envelope: Option<String>,
}

impl Case {
    /// The headers that agent-wait sent and that matter to a receiver, as text.
    #[must_use]
    pub fn headers(&self) -> Vec<(String, String)> {
        let Some(headers) = self.all["headers"].as_object() else { return Vec::new() };
        headers
            .iter()
            .filter(|(name, _)| {
                let name = name.to_ascii_lowercase();
                name == "content-type" || name.starts_with("x-")
            })
            .map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned()))
            .collect()
    }
}

/// What agent-wait signed the captures with.
pub const SECRET: &str = "test-secret";

/// All captures, by name.
///
/// # Panics
/// When the folder is not there or a file is no JSON.
#[must_use]
pub fn all() -> Vec<Case> {
    let folder = root().join("tests/cases/envelopes");
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)
        .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .collect();
    files.sort();
    files.iter().map(|path| read(path)).collect()
}

/// One capture by the number that its name starts with.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn numbered(number: u32) -> Case {
    let prefix = format!("{number:03}-");
    all().into_iter().find(|c| c.name.starts_with(&prefix)).expect("a case of that number")
}

fn read(path: &Path) -> Case {
    let text = fs::read_to_string(path).expect("a readable case");
    let mut all: Value =
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let envelope = all["envelope_raw"].as_str().map(ToOwned::to_owned);
    if let Some(raw) = &envelope {
        put_in(&mut all, raw);
    }
    let name = path.file_stem().and_then(|s| s.to_str()).unwrap_or_default().to_owned();
    Case { name, all, envelope }
}

fn put_in(value: &mut Value, raw: &str) {
    match value {
        Value::String(text) if text == "@envelope_raw" => raw.clone_into(text),
        Value::Array(items) => items.iter_mut().for_each(|item| put_in(item, raw)),
        Value::Object(members) => members.values_mut().for_each(|member| put_in(member, raw)),
        _ => {}
    }
}

/// The repository's root.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_read_and_most_hold_an_envelope() {
        let cases = all();
        assert_eq!(cases.len(), 148);
        assert_eq!(cases.iter().filter(|c| c.envelope.is_some()).count(), 124);
        let finance = numbered(1);
        assert_eq!(finance.name, "001-lg-wait-tool-finance");
        assert_eq!(finance.all["sqs"]["MessageBody"].as_str(), finance.envelope.as_deref());
        assert!(finance.headers().iter().any(|(name, _)| name == "X-Agent-Wait-Signature"));
    }
}
