//! Secrets out of the environment and out of files.

use answerback_contract::settings::SecretStore;
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Read as _};
use std::path::PathBuf;

/// The most bytes of a file that is read: far more than any secret or certificate has.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The process's own environment and files.
pub struct ProcessSecrets {
    variables: BTreeMap<String, String>,
    base: PathBuf,
}

impl ProcessSecrets {
    /// Variables as given; relative names of files start at `base`.
    #[must_use]
    pub fn new(variables: BTreeMap<String, String>, base: PathBuf) -> Self {
        Self { variables, base }
    }
}

impl SecretStore for ProcessSecrets {
    fn variable(&self, name: &str) -> Option<String> {
        self.variables.get(name).cloned()
    }

    fn file(&self, path: &str) -> Result<String, Error> {
        let file = std::fs::File::open(self.base.join(path))?;
        let mut text = String::new();
        file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
        if u64::try_from(text.len()).is_ok_and(|n| n > MAX_FILE_BYTES) {
            return Err(Error::new(ErrorKind::FileTooLarge, "it is larger than 1 MiB"));
        }
        Ok(text)
    }
}

impl std::fmt::Debug for ProcessSecrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProcessSecrets").field("base", &self.base).finish_non_exhaustive()
    }
}
