//! Sends messages through a batch API such as `SendMessageBatch`.
//!
//! A batch is cut into calls by the API's limits; the calls of a batch run at the same time. FIFO
//! destinations are sent to in rounds: a call never holds two messages of one group, and the later
//! one of a group waits for a round after the earlier one has arrived. An entry that fails within a
//! call therefore never lets its successor overtake (contract, section 4).

use crate::failure::{Class, Failure};
use answerback_contract::{Attempt, Message, Outcome, async_trait};
use futures::future::join_all;
use std::collections::HashSet;
use tokio::time::{Instant, timeout_at};

/// What one call may carry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caps {
    /// Entries a call.
    pub entries: usize,
    /// Bytes a call, attributes counted.
    pub bytes: usize,
}

/// A message as an entry of a call.
#[derive(Debug)]
pub struct Prepared<E> {
    /// The entry; its id is given when it is sent.
    pub entry: E,
    /// What it counts against [`Caps::bytes`].
    pub bytes: usize,
}

/// What came of the entries of a call, by their place in it. An entry in neither list is not known
/// to have arrived.
#[derive(Debug, Default)]
pub struct Receipt {
    /// These have arrived.
    pub accepted: Vec<usize>,
    /// These have not.
    pub refused: Vec<(usize, Failure)>,
}

/// A service's batch call.
#[async_trait]
pub trait BatchApi: Send + Sync {
    /// The SDK's entry.
    type Entry: Send;

    /// What a call may carry.
    fn caps(&self) -> Caps;

    /// Whether the messages of a thread must keep their order.
    fn is_fifo(&self) -> bool;

    /// Makes the entry. Pure.
    ///
    /// # Errors
    /// The outcome of a message that no call could carry.
    fn prepare(&self, message: &Message) -> Result<Prepared<Self::Entry>, Outcome>;

    /// One call. Entry ids are the entries' places.
    ///
    /// # Errors
    /// When the call as a whole failed.
    async fn send(&self, entries: Vec<Self::Entry>) -> Result<Receipt, Failure>;
}

/// Sends a batch; one outcome a message, in order.
pub async fn announce<A: BatchApi>(api: &A, batch: &[Message], attempt: Attempt) -> Vec<Outcome> {
    let deadline = Instant::now() + attempt.timeout;
    let mut outcomes: Vec<Option<Outcome>> = vec![None; batch.len()];
    let mut waiting: Vec<usize> = (0..batch.len()).collect();
    let mut held_back: HashSet<&str> = HashSet::new();
    while !waiting.is_empty() {
        let mut round = Vec::with_capacity(waiting.len());
        let mut groups: HashSet<&str> = HashSet::new();
        let mut later = Vec::new();
        for index in waiting {
            let group = batch[index].thread_id.as_str();
            if held_back.contains(group) {
                outcomes[index] =
                    Some(Outcome::retry("an earlier message of its thread has not arrived yet"));
            } else if api.is_fifo() && !groups.insert(group) {
                later.push(index);
            } else {
                match api.prepare(&batch[index]) {
                    Ok(prepared) => round.push((index, prepared)),
                    Err(outcome) => outcomes[index] = Some(outcome),
                }
            }
        }
        let calls = cut(api.caps(), round).into_iter().map(|call| one(api, batch, call, deadline));
        for (index, outcome) in join_all(calls).await.into_iter().flatten() {
            // A refused message is dead; only one that will come again can be overtaken.
            if api.is_fifo() && matches!(outcome, Outcome::Retry { .. }) {
                held_back.insert(batch[index].thread_id.as_str());
            }
            outcomes[index] = Some(outcome);
        }
        waiting = later;
    }
    outcomes
        .into_iter()
        .map(|outcome| outcome.unwrap_or_else(|| Outcome::retry("was not sent")))
        .collect()
}

/// Cuts entries into calls, in order, each as full as the limits allow.
fn cut<E>(caps: Caps, round: Vec<(usize, Prepared<E>)>) -> Vec<Vec<(usize, E)>> {
    let mut calls: Vec<Vec<(usize, E)>> = Vec::new();
    let mut bytes = 0;
    for (index, prepared) in round {
        bytes += prepared.bytes;
        match calls.last_mut() {
            Some(call) if call.len() < caps.entries && bytes <= caps.bytes => {
                call.push((index, prepared.entry));
            }
            _ => {
                bytes = prepared.bytes;
                calls.push(vec![(index, prepared.entry)]);
            }
        }
    }
    calls
}

/// One call, and when it is refused as a whole for its content, each message alone.
async fn one<A: BatchApi>(
    api: &A,
    batch: &[Message],
    call: Vec<(usize, A::Entry)>,
    deadline: Instant,
) -> Vec<(usize, Outcome)> {
    let (indexes, entries): (Vec<usize>, Vec<A::Entry>) = call.into_iter().unzip();
    let failure = match in_time(api, entries, deadline).await {
        Ok(receipt) => return settle(&indexes, &receipt),
        Err(failure) => failure,
    };
    if !failure.blames_the_message() || indexes.len() == 1 {
        return indexes.into_iter().map(|index| (index, failure.outcome())).collect();
    }
    join_all(indexes.into_iter().map(async |index| {
        let outcome = match api.prepare(&batch[index]) {
            Ok(prepared) => match in_time(api, vec![prepared.entry], deadline).await {
                Ok(receipt) => settle(&[index], &receipt).pop().map(|(_, outcome)| outcome),
                Err(failure) => Some(failure.outcome()),
            },
            Err(outcome) => Some(outcome),
        };
        (index, outcome.unwrap_or_else(|| Outcome::retry("was not sent")))
    }))
    .await
}

async fn in_time<A: BatchApi>(
    api: &A,
    entries: Vec<A::Entry>,
    deadline: Instant,
) -> Result<Receipt, Failure> {
    timeout_at(deadline, api.send(entries)).await.unwrap_or_else(|_| {
        Err(Failure { class: Class::Timeout, code: String::new(), status: None, after: None })
    })
}

fn settle(indexes: &[usize], receipt: &Receipt) -> Vec<(usize, Outcome)> {
    indexes
        .iter()
        .enumerate()
        .map(|(place, index)| {
            let refused = receipt.refused.iter().find(|(at, _)| *at == place);
            let outcome = match refused {
                Some((_, failure)) => failure.outcome(),
                None if receipt.accepted.contains(&place) => Outcome::Delivered,
                None => Outcome::retry("AWS does not say whether it arrived"),
            };
            (*index, outcome)
        })
        .collect()
}

/// The place of an entry from its id.
#[must_use]
pub fn place_of(id: &str) -> Option<usize> {
    id.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure;
    use answerback_contract::{
        Bytes, DedupeKey, DedupeRest, Event, EventId, Generation, QuestionId, Rejection, ThreadId,
        Time, WaitState,
    };
    use std::sync::Mutex;
    use std::time::Duration;

    fn message(thread: &str, payload: &str) -> Message {
        let question_id = QuestionId::new("q").unwrap();
        let rest = DedupeRest::choice(&question_id, 1);
        Message {
            event: Event::Created,
            event_id: EventId::new("e").unwrap(),
            thread_id: ThreadId::new(thread).unwrap(),
            question_id,
            generation: Generation::FIRST,
            dedupe_key: DedupeKey::of(Event::Created, &rest, 0),
            wait_key: rest,
            payload: Bytes::copy_from_slice(payload.as_bytes()),
            envelope: Bytes::new(),
            state: WaitState::Open,
            expires_at: None,
            at: Time::MIN,
            answered_by: None,
            answered_via: None,
        }
    }

    /// Entries are payloads; what happens to one is in its text.
    struct Fake {
        fifo: bool,
        calls: Mutex<Vec<Vec<String>>>,
    }

    impl Fake {
        fn new(fifo: bool) -> Self {
            Self { fifo, calls: Mutex::new(Vec::new()) }
        }

        async fn run(&self, batch: &[Message]) -> Vec<String> {
            self.run_for(batch, Duration::from_secs(5)).await
        }

        async fn run_for(&self, batch: &[Message], timeout: Duration) -> Vec<String> {
            let attempt = Attempt { now: Time::MIN, timeout };
            announce(self, batch, attempt)
                .await
                .into_iter()
                .map(|outcome| match outcome {
                    Outcome::Delivered => "delivered".to_owned(),
                    Outcome::Retry { .. } => "retry".to_owned(),
                    Outcome::Rejected { rejection, .. } => rejection.code().to_owned(),
                })
                .collect()
        }

        fn calls(&self) -> Vec<Vec<String>> {
            self.calls.lock().unwrap().clone()
        }
    }

    #[async_trait]
    impl BatchApi for Fake {
        type Entry = String;

        fn caps(&self) -> Caps {
            Caps { entries: 10, bytes: 100 }
        }

        fn is_fifo(&self) -> bool {
            self.fifo
        }

        fn prepare(&self, message: &Message) -> Result<Prepared<String>, Outcome> {
            let text = String::from_utf8(message.payload.to_vec()).unwrap();
            if text.len() > 100 {
                return Err(Outcome::Rejected {
                    rejection: Rejection::TooLarge,
                    reason: String::new(),
                });
            }
            Ok(Prepared { bytes: text.len(), entry: text })
        }

        async fn send(&self, entries: Vec<String>) -> Result<Receipt, Failure> {
            self.calls.lock().unwrap().push(entries.clone());
            if entries.iter().any(|e| e.contains("hang")) {
                std::future::pending::<()>().await;
            }
            if entries.iter().any(|e| e.contains("poison")) {
                return Err(failure::of_entry("InvalidMessageContents", "", true));
            }
            if entries.iter().any(|e| e.contains("down")) {
                return Err(failure::of_entry("ServiceUnavailable", "", true));
            }
            let mut receipt = Receipt::default();
            for (place, entry) in entries.iter().enumerate() {
                if entry.contains("fault") {
                    receipt.refused.push((place, failure::of_entry("Odd", "", true)));
                } else if entry.contains("busy") {
                    receipt.refused.push((place, failure::of_entry("Throttling", "", true)));
                } else if !entry.contains("silent") {
                    receipt.accepted.push(place);
                }
            }
            Ok(receipt)
        }
    }

    fn texts(batch: &[(&str, &str)]) -> Vec<Message> {
        batch.iter().map(|(thread, payload)| message(thread, payload)).collect()
    }

    #[tokio::test]
    async fn a_batch_is_cut_by_ten_entries_and_by_bytes() {
        let fake = Fake::new(false);
        let many: Vec<_> = (0..23).map(|i| message("t", &i.to_string())).collect();
        assert!(fake.run(&many).await.iter().all(|o| o == "delivered"));
        let lengths: Vec<_> = fake.calls().iter().map(Vec::len).collect();
        assert_eq!(lengths, [10, 10, 3]);
        let fake = Fake::new(false);
        let large: Vec<_> =
            [60, 40, 1, 100, 50, 51, 101].iter().map(|n| message("t", &"x".repeat(*n))).collect();
        let outcomes = fake.run(&large).await;
        assert_eq!(outcomes[6], "too-large");
        let sizes: Vec<Vec<usize>> =
            fake.calls().iter().map(|c| c.iter().map(String::len).collect()).collect();
        assert_eq!(sizes, [vec![60, 40], vec![1], vec![100], vec![50], vec![51]]);
    }

    #[tokio::test]
    async fn partial_failures_go_to_their_own_messages() {
        let fake = Fake::new(false);
        let batch =
            texts(&[("a", "1"), ("b", "fault"), ("c", "busy"), ("d", "silent"), ("e", "2")]);
        assert_eq!(fake.run(&batch).await, ["delivered", "refused", "retry", "retry", "delivered"]);
        assert_eq!(fake.calls().len(), 1);
    }

    #[tokio::test]
    async fn a_call_refused_for_its_content_is_sent_again_one_by_one() {
        let fake = Fake::new(false);
        let batch = texts(&[("a", "1"), ("b", "poison"), ("c", "2")]);
        assert_eq!(fake.run(&batch).await, ["delivered", "refused", "delivered"]);
        assert_eq!(fake.calls().len(), 4);
    }

    #[tokio::test]
    async fn a_call_that_fails_for_another_reason_is_retried_whole() {
        let fake = Fake::new(false);
        assert_eq!(fake.run(&texts(&[("a", "1"), ("b", "down")])).await, ["retry", "retry"]);
        assert_eq!(fake.calls().len(), 1);
    }

    #[tokio::test]
    async fn two_messages_of_a_fifo_group_are_never_in_one_call() {
        let fake = Fake::new(true);
        let batch = texts(&[("a", "a1"), ("a", "a2"), ("b", "b1"), ("a", "a3"), ("b", "b2")]);
        assert!(fake.run(&batch).await.iter().all(|o| o == "delivered"));
        assert_eq!(fake.calls(), [vec!["a1", "b1"], vec!["a2", "b2"], vec!["a3"]]);
    }

    #[tokio::test]
    async fn a_failed_message_of_a_fifo_group_is_not_overtaken() {
        let fake = Fake::new(true);
        let batch = texts(&[("a", "busy"), ("a", "a2"), ("b", "b1"), ("a", "a3"), ("b", "b2")]);
        assert_eq!(fake.run(&batch).await, ["retry", "retry", "delivered", "retry", "delivered"]);
        assert_eq!(fake.calls(), [vec!["busy", "b1"], vec!["b2"]]);
    }

    #[tokio::test]
    async fn a_dead_message_of_a_fifo_group_lets_the_next_one_go() {
        let fake = Fake::new(true);
        let large = "x".repeat(101);
        let batch = texts(&[("a", "fault"), ("a", "a2"), ("b", &large), ("b", "b2")]);
        assert_eq!(fake.run(&batch).await, ["refused", "delivered", "too-large", "delivered"]);
    }

    #[tokio::test]
    async fn the_whole_call_ends_at_the_attempts_timeout() {
        let fake = Fake::new(true);
        let batch = texts(&[("a", "hang"), ("a", "a2")]);
        assert_eq!(fake.run_for(&batch, Duration::from_millis(20)).await, ["retry", "retry"]);
    }
}
