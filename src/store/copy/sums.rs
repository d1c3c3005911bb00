//! What both sides hold, summed up independently of the order: counts of all tables, and sums of
//! hashes of waits and messages.

use super::tables::Table;
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;

/// A sum of the first 56 bits of SHA-256 over each row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum(pub(super) u128);

/// [`Sum::wait`] of all waits in PostgreSQL, as text.
pub(super) const WAITS: &str = "SELECT coalesce(sum(('x' || encode(substr(h, 1, 7), 'hex'))::bit(56)::bigint), 0)::text \
     FROM (SELECT sha256(convert_to(id || ':' || state || ':' || octet_length(envelope) || ':' || \
       coalesce(octet_length(taken_over), -1) || ':' || coalesce(octet_length(answer), -1) || ':', \
       'UTF8') || envelope || coalesce(taken_over, ''::bytea) || coalesce(answer, ''::bytea)) AS h \
       FROM waits) hashes";

/// [`Sum::message`] of all messages in PostgreSQL, as text.
pub(super) const OUTBOX: &str = "SELECT coalesce(sum(('x' || encode(substr(h, 1, 7), 'hex'))::bit(56)::bigint), 0)::text \
     FROM (SELECT sha256(convert_to(id || ':' || wait || ':' || destination || ':' || state || ':' \
       || attempts || ':' || next_attempt_at || ':' || coalesce(order_key::text, '') || ':', \
       'UTF8')) AS h FROM outbox) hashes";

impl Sum {
    /// Adds a wait.
    pub(super) fn wait(
        &mut self,
        id: i64,
        state: i64,
        envelope: &[u8],
        taken_over: Option<&[u8]>,
        answer: Option<&[u8]>,
    ) {
        let length = |bytes: Option<&[u8]>| bytes.map_or("-1".to_owned(), |b| b.len().to_string());
        let head =
            format!("{id}:{state}:{}:{}:{}:", envelope.len(), length(taken_over), length(answer));
        let mut hash = Sha256::new();
        hash.update(head.as_bytes());
        hash.update(envelope);
        hash.update(taken_over.unwrap_or_default());
        hash.update(answer.unwrap_or_default());
        self.add(&hash.finalize());
    }

    /// Adds a message: its numbers in the order of [`OUTBOX`].
    pub(super) fn message(&mut self, numbers: &[Option<i64>]) {
        let mut text = String::new();
        for number in numbers {
            let _ = match number {
                Some(number) => write!(text, "{number}:"),
                None => write!(text, ":"),
            };
        }
        self.add(&Sha256::digest(text.as_bytes()));
    }

    fn add(&mut self, hash: &[u8]) {
        let first = hash.iter().take(7).fold(0_u128, |sum, byte| sum << 8 | u128::from(*byte));
        self.0 += first;
    }
}

/// What one side holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sums {
    /// Rows of [`Table::ALL`].
    pub(super) counts: [u64; Table::ALL.len()],
    /// An event is a commit of its own.
    pub(super) commits: u64,
    pub(super) waits: Sum,
    pub(super) outbox: Sum,
}

impl Sums {
    /// What is different over there.
    pub(super) fn difference(&self, there: &Self) -> Option<String> {
        let counts = Table::ALL.iter().zip(self.counts.iter().zip(&there.counts));
        for (table, (here, there)) in counts {
            if here != there {
                let table = table.name();
                return Some(format!("{there} rows arrived of the {here} of the table {table}"));
            }
        }
        if self.commits != there.commits {
            return Some("there is another number of commits than of events".to_owned());
        }
        if self.waits != there.waits {
            return Some("the checksums of the waits differ".to_owned());
        }
        (self.outbox != there.outbox).then(|| "the checksums of the messages differ".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Id, state, envelope and answer.
    type Row = (i64, i64, &'static [u8], Option<&'static [u8]>);

    #[test]
    fn a_sum_knows_no_order_and_every_byte() {
        let rows: [Row; 3] =
            [(1, 1, b"{}", None), (2, 2, b"{\"a\":1}", Some(b"true")), (3, 1, b"{}", Some(b""))];
        let sum = |order: &[usize]| {
            let mut sum = Sum::default();
            for n in order {
                let (id, state, envelope, answer) = rows[*n];
                sum.wait(id, state, envelope, None, answer);
            }
            sum
        };
        assert_eq!(sum(&[0, 1, 2]), sum(&[2, 0, 1]));
        assert_ne!(sum(&[0, 1]), sum(&[0, 2]));
        let mut moved = Sum::default();
        // The same bytes, but some of the answer in the envelope.
        moved.wait(2, 2, b"{\"a\":1}t", None, Some(b"rue"));
        assert_ne!(moved, sum(&[1]));
    }

    #[test]
    fn what_differs_is_named() {
        let here = Sums { counts: [3; 7], commits: 3, waits: Sum(1), outbox: Sum(2) };
        assert_eq!(here.difference(&here), None);
        let mut there = here.clone();
        there.counts[1] = 2;
        assert!(here.difference(&there).unwrap().contains("table waits"));
        let there = Sums { waits: Sum(9), ..here.clone() };
        assert!(here.difference(&there).unwrap().contains("checksums of the waits"));
    }
}
