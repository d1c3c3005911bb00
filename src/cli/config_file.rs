//! The configuration as this process finds it.

use crate::config::{Config, ConfigError};
use crate::registry::Registry;
use std::collections::BTreeMap;
use std::path::Path;

/// Reads the named file, else the default one, and the environment.
///
/// # Errors
/// As [`Config::read`].
pub(crate) fn read(file: Option<&Path>, registry: &Registry) -> Result<Config, ConfigError> {
    // What is not UTF-8 can be neither a setting nor a secret that a header could carry.
    let variables: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    Config::read(file, &variables, registry)
}
