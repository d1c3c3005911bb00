//! One attempt to send a batch, and what follows from it for each message.

use super::Shared;
use super::lane::LaneConfig;
use super::outlet::Outgoing;
use crate::metrics::LaneMetrics;
use crate::store::{Settled, Settlement};
use answerback_contract::{Attempt, Outcome, Rejection, Time};
use answerback_core::Leased;
use answerback_core::retry::{self, Verdict};
use std::sync::Arc;
use std::time::Duration;

/// What a finished batch tells its lane.
pub(super) struct Report {
    /// Whether the destination answered as it should.
    pub(super) healthy: bool,
    /// The destination is gone (HTTP 410).
    pub(super) gone: bool,
    /// What to record.
    pub(super) settlements: Vec<Settlement>,
}

impl Report {
    /// Of an attempt that was given up: as if it had not been made, though it may arrive.
    fn given_up(batch: &[Outgoing]) -> Self {
        let released = |out: &Outgoing| {
            let (id, lease) = (out.leased.id, out.leased.lease);
            Settlement { id, lease, settled: Settled::Released }
        };
        Self { healthy: true, gone: false, settlements: batch.iter().map(released).collect() }
    }
}

/// One batch's attempt.
pub(super) struct Work {
    pub(super) shared: Arc<Shared>,
    pub(super) config: Arc<LaneConfig>,
    pub(super) metrics: LaneMetrics,
}

impl Work {
    /// Sends the batch, within bounds of time, and judges what came of it.
    pub(super) async fn attempt(self, batch: Vec<Outgoing>) -> Report {
        let timeout = self.config.limits.attempt_timeout;
        let attempt = Attempt { now: self.shared.clock.now(), timeout };
        // Announcers keep to the timeout themselves; this bound is for those that do not.
        let bound = timeout + Duration::from_secs(5);
        let sent = tokio::time::timeout(bound, self.config.outlet.send(&batch, attempt));
        let sent = tokio::select! {
            sent = sent => sent,
            () = self.shared.cut_off.cancelled() => return Report::given_up(&batch),
        };
        let mut outcomes = sent.unwrap_or_default();
        outcomes
            .resize_with(batch.len(), || Outcome::retry("no outcome within the attempt's timeout"));
        let now = self.shared.clock.now();
        let settlements = Vec::with_capacity(batch.len());
        let mut report = Report { healthy: false, gone: false, settlements };
        for (out, outcome) in batch.iter().zip(outcomes) {
            report.healthy |= !retry::blames_destination(&outcome);
            report.gone |= matches!(outcome, Outcome::Rejected { rejection: Rejection::Gone, .. });
            report.settlements.push(self.judge(&out.leased, outcome, now));
        }
        report
    }

    fn judge(&self, leased: &Leased, outcome: Outcome, now: Time) -> Settlement {
        let attempts = leased.attempts.saturating_add(1);
        let schedule = self.config.schedule;
        let verdict =
            schedule.judge(&outcome, attempts, leased.queued_at, now, self.shared.clock.random());
        let error = match outcome {
            Outcome::Delivered => String::new(),
            Outcome::Retry { reason, .. } | Outcome::Rejected { reason, .. } => reason,
        };
        let destination = self.config.destination.label();
        let id = leased.id.0;
        let settled = match verdict {
            Verdict::Delivered => {
                tracing::debug!(
                    destination,
                    id,
                    attempts,
                    event = leased.event.name(),
                    "delivered"
                );
                self.metrics.delivered.increment(1);
                let seconds = leased.queued_at.until(now).as_secs_f64();
                self.metrics.seconds.record(seconds);
                Settled::Delivered
            }
            Verdict::RetryAt(at) => {
                tracing::debug!(destination, id, attempts, event = leased.event.name(), %at, error, "not delivered: again later");
                self.metrics.retried.increment(1);
                Settled::RetryAt { at, error }
            }
            Verdict::Dead(reason) => {
                tracing::warn!(
                    destination,
                    id,
                    attempts,
                    event = leased.event.name(),
                    reason,
                    error,
                    "given up: kept as dead, can be retried"
                );
                self.metrics.dead.increment(1);
                Settled::Dead { reason, error }
            }
        };
        Settlement { id: leased.id, lease: leased.lease, settled }
    }
}
