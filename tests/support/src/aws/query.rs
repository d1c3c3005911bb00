//! The query protocol: flat form fields in, XML out.

use std::collections::BTreeMap;

/// The fields of a form.
pub(super) struct Form(BTreeMap<String, String>);

impl Form {
    pub(super) fn read(body: &[u8]) -> Self {
        Self(url::form_urlencoded::parse(body).into_owned().collect())
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// How many members the list at `prefix` has, counted from 1 without a gap.
    pub(super) fn members(&self, prefix: &str) -> usize {
        (1..)
            .take_while(|n| {
                let start = format!("{prefix}.{n}.");
                self.0
                    .range(start.clone()..)
                    .next()
                    .is_some_and(|(name, _)| name.starts_with(&start))
            })
            .count()
    }
}

/// Text within XML.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
