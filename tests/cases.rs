//! What agent-wait really sends (`tests/cases`), judged one by one in `tests/cases/judged.txt`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use answerback_contract::{Bytes, Generation, json};
use answerback_core::Envelope;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

fn cases() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases")
}

#[test]
fn what_agent_wait_sends_is_judged_as_reviewed() {
    let mut names: Vec<_> =
        fs::read_dir(cases().join("envelopes")).unwrap().map(|f| f.unwrap().path()).collect();
    names.sort();
    let mut judged = String::new();
    for path in names {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let case = fs::read_to_string(&path).unwrap();
        let case: serde_json::Value = serde_json::from_str(&case).unwrap();
        let judgement = match case.get("envelope_raw").and_then(|raw| raw.as_str()) {
            None => "nothing was sent".to_owned(),
            Some(raw) => judge(raw),
        };
        writeln!(judged, "{name:46} {judgement}").unwrap();
    }
    let reviewed = fs::read_to_string(cases().join("judged.txt")).unwrap();
    let reviewed: Vec<_> = reviewed.lines().filter(|line| !line.starts_with('#')).collect();
    for (judged, reviewed) in judged.lines().zip(&reviewed) {
        assert_eq!(judged, *reviewed);
    }
    assert_eq!(judged.lines().count(), reviewed.len());
}

/// How one body is taken; with all that must hold of a body that is.
fn judge(raw: &str) -> String {
    let envelope = match Envelope::parse(Bytes::copy_from_slice(raw.as_bytes())) {
        Ok(envelope) => envelope,
        Err(refusal) => return format!("refused: {refusal}"),
    };
    assert_eq!(envelope.announced(Generation::FIRST).unwrap(), raw);
    let second = envelope.announced(Generation::new(2).unwrap()).unwrap();
    let second = std::str::from_utf8(&second).unwrap();
    let (before, after) = (json::members(raw).unwrap(), json::members(second).unwrap());
    assert_eq!(before.len(), after.len());
    for (b, a) in before.iter().zip(&after) {
        assert_eq!(b.key, a.key);
        if b.key == "reply_with" {
            let with = json::with_member(b.raw, "generation", "2").unwrap();
            assert_eq!(a.raw, with);
        } else {
            assert_eq!(b.raw, a.raw);
        }
    }
    // Nothing but what stands for `reply_with` is touched: not even white space.
    let reply_with = before.iter().find(|m| m.key == "reply_with").unwrap().raw;
    assert_eq!(
        raw.replacen(reply_with, &json::with_member(reply_with, "generation", "2").unwrap(), 1),
        second
    );
    let mut judgement = String::from("taken");
    if let Some(at) = envelope.expires_at() {
        write!(judgement, ", until {at}").unwrap();
    }
    if let Some(default) = envelope.default() {
        let default = String::from_utf8_lossy(&default);
        write!(judgement, ", else {default}").unwrap();
    }
    if let Some(ttl) = envelope.answer_ttl() {
        write!(judgement, ", for {} ms", ttl.as_millis()).unwrap();
    }
    judgement
}
