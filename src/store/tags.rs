//! Filtering waits by the tags of their envelopes.

use answerback_contract::json::{self, Json};
use answerback_core::{Envelope, Refusal, Wait};

/// Whether a wait has these tags: compared as text, or as JSON text when the tag is no string.
pub(super) fn has(wait: &Wait, wanted: &[(String, String)]) -> Result<bool, Refusal> {
    if wanted.is_empty() {
        return Ok(true);
    }
    let envelope = Envelope::parse(wait.envelope.clone())?;
    let Some(text) = envelope.tags_text() else { return Ok(false) };
    let members = json::members(text)?;
    for (name, value) in wanted {
        let Some(tag) = members.iter().rev().find(|m| m.key == *name) else { return Ok(false) };
        let same = match json::parse(tag.raw)? {
            Json::String(text) => text == *value,
            _ => tag.raw == value,
        };
        if !same {
            return Ok(false);
        }
    }
    Ok(true)
}
