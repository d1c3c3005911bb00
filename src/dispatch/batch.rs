//! Cuts what was leased into batches.

use super::outlet::Outgoing;
use answerback_contract::Limits;

/// Batches in the order of what was leased, each within the limits. A message that is over a limit
/// by itself gets a batch of its own; whether it is sent at all is not decided here.
pub(super) fn cut(messages: Vec<Outgoing>, limits: Limits) -> Vec<Vec<Outgoing>> {
    let most = limits.batch_messages.max(1);
    let mut batches = Vec::with_capacity(messages.len().div_ceil(most));
    let mut batch: Vec<Outgoing> = Vec::new();
    let mut bytes = 0_usize;
    for message in messages {
        let size = message.message.payload.len();
        let full = batch.len() == most || bytes.saturating_add(size) > limits.batch_bytes;
        if full && !batch.is_empty() {
            batches.push(std::mem::take(&mut batch));
            bytes = 0;
        }
        bytes = bytes.saturating_add(size);
        batch.push(message);
    }
    if !batch.is_empty() {
        batches.push(batch);
    }
    batches
}
