//! What indices are over instead of ids: ids are longer than an index takes, and how texts compare
//! differs between machines and changes under running databases.
//!
//! The first 16 bytes of a SHA-256 over length-prefixed parts: no two things meet by chance.

use answerback_contract::{DedupeRest, QuestionId, TenantId, ThreadId};
use answerback_core::Destination;
use sha2::{Digest, Sha256};

/// Sixteen bytes that stand for something.
pub(super) type Hash = [u8; 16];

/// The two parts of a question's identity: its thread's, then its own.
pub(super) type Identity = [u8; 24];

fn hash(parts: &[&[u8]]) -> Hash {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(part);
    }
    let mut first = [0; 16];
    first.copy_from_slice(&hash.finalize()[..16]);
    first
}

/// Of a dedupe key, given or to be remembered.
pub(super) fn key(tenant: &TenantId, rest: &DedupeRest) -> Hash {
    hash(&[b"key", tenant.as_str().as_bytes(), rest.as_str().as_bytes()])
}

/// Of a thread: what every [`identity`] of its questions starts with.
pub(super) fn thread(tenant: &TenantId, thread: &ThreadId) -> [u8; 8] {
    let whole = hash(&[b"thread", tenant.as_str().as_bytes(), thread.as_str().as_bytes()]);
    let mut first = [0; 8];
    first.copy_from_slice(&whole[..8]);
    first
}

/// Of a question in its thread, as it is remembered when it is forgotten.
pub(super) fn remembered(tenant: &TenantId, thread: &ThreadId, question: &QuestionId) -> Hash {
    let parts = [tenant.as_str(), thread.as_str(), question.as_str()].map(str::as_bytes);
    hash(&[b"identity", parts[0], parts[1], parts[2]])
}

/// Of a question in its thread.
pub(super) fn identity(tenant: &TenantId, thread_id: &ThreadId, question: &QuestionId) -> Identity {
    let mut identity = [0; 24];
    identity[..8].copy_from_slice(&thread(tenant, thread_id));
    identity[8..].copy_from_slice(&remembered(tenant, thread_id, question));
    identity
}

/// Of a question id in whatever thread.
pub(super) fn question(tenant: &TenantId, question: &QuestionId) -> Hash {
    hash(&[b"question", tenant.as_str().as_bytes(), question.as_str().as_bytes()])
}

/// Of a run.
pub(super) fn run(tenant: &TenantId, run: &str) -> Hash {
    hash(&[b"run", tenant.as_str().as_bytes(), run.as_bytes()])
}

/// Of one publish of a question.
pub(super) fn event(tenant: &TenantId, thread: &ThreadId, question: &QuestionId, id: &str) -> Hash {
    let parts = [tenant.as_str(), thread.as_str(), question.as_str(), id].map(str::as_bytes);
    hash(&[b"event", parts[0], parts[1], parts[2], parts[3]])
}

/// Of a destination.
pub(super) fn destination(destination: &Destination) -> Hash {
    let (kind, name) = destination.parts();
    hash(&[b"destination", kind.as_bytes(), name.as_bytes()])
}

/// Of what a kept reply is for.
pub(super) fn scope(scope: &str) -> Hash {
    hash(&[b"scope", scope.as_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(thread: &str) -> (TenantId, ThreadId, QuestionId) {
        let thread = ThreadId::new(thread).unwrap();
        (TenantId::new("default").unwrap(), thread, QuestionId::new("q").unwrap())
    }

    #[test]
    fn kinds_and_parts_are_kept_apart() {
        let (tenant, thread, question) = ids("a");
        let (_, other, _) = ids("ab");
        let all = [
            key(&tenant, &DedupeRest::choice(&question, 1)),
            remembered(&tenant, &thread, &question),
            remembered(&tenant, &other, &question),
            event(&tenant, &thread, &question, "e"),
            super::question(&tenant, &question),
            run(&tenant, "a"),
            scope("a"),
        ];
        for (n, a) in all.iter().enumerate() {
            assert!(!all[n + 1..].contains(a));
        }
    }

    #[test]
    fn what_stores_have_kept_for_years_is_found_again() {
        let (tenant, thread, question) = ids("t");
        let second = DedupeRest::choice(&question, 2);
        assert_eq!(hex::encode(key(&tenant, &second)), "a9ebf751069c35f7e79d7b3e3ea4e660");
        let identity = remembered(&tenant, &thread, &question);
        assert_eq!(hex::encode(identity), "a7b9bd6d74adeb6476a1c52e57d1808b");
        let event = event(&tenant, &thread, &question, "e1");
        assert_eq!(hex::encode(event), "dadb582d0e2e3cf2faa57c595510a27d");
    }

    #[test]
    fn the_questions_of_a_thread_stand_together() {
        let (tenant, thread, question) = ids("t");
        let identity = identity(&tenant, &thread, &question);
        assert!(identity.starts_with(&super::thread(&tenant, &thread)));
    }
}
