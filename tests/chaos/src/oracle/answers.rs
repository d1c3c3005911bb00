//! One answer a wait: requests and replies as a register that is written once, checked against their
//! real times (linearizability); and what hosts are told.

use super::{Book, Findings, Story};
use crate::clock::At;
use crate::history::{Pulled, Reply, Verdict, WaitKey};
use crate::text::Text;
use std::collections::BTreeSet;

const ONE: &str = "one answer a wait";
const AGAIN: &str = "the same answer is accepted again";
const REASON: &str = "an answer is refused only once the wait is over";
const END: &str = "a wait ends once";
const STALE: &str = "what was acknowledged is seen everywhere";
const HOST: &str = "a host is told one answer";
const UNTOLD: &str = "an answer reaches its host";
const REPLY: &str = "a right request gets a right reply";

pub(super) fn check(book: &Book<'_>, findings: &mut Findings) {
    for (key, story) in &book.stories {
        let mut wait = Wait { book, key, story, findings };
        wait.accepted_one();
        wait.refused_for_a_reason();
        wait.ended_once();
        wait.looked_at();
        wait.told();
        wait.delivered();
    }
}

struct Wait<'w, 'h> {
    book: &'w Book<'h>,
    key: &'w WaitKey,
    story: &'w Story<'h>,
    findings: &'w mut Findings,
}

impl Wait<'_, '_> {
    fn wrong(&mut self, rule: &'static str, at: At, what: String) {
        self.findings.add(rule, at, Some(self.key), what);
    }

    /// The value that was accepted, and when that was first known.
    fn accepted(&self) -> Option<(&Text, At)> {
        let accepted = self.story.answers.iter().filter(|a| matches!(a.reply, Reply::Ok(())));
        accepted.map(|answer| (&answer.value, answer.span.end)).min_by_key(|(_, end)| *end)
    }

    /// When this value was first tried.
    fn tried(&self, value: &str) -> Option<At> {
        let tries = self.story.answers.iter().filter(|answer| &*answer.value == value);
        tries.map(|answer| answer.span.begin).min()
    }

    /// The value of an answer's text, by what was sent.
    fn value_of(&self, text: &str) -> Option<&Text> {
        self.story.answers.iter().find(|a| &*a.text == text).map(|a| &a.value)
    }

    fn accepted_one(&mut self) {
        let Some((value, _)) = self.accepted() else { return };
        let value = value.clone();
        for answer in self.story.answers.clone() {
            match &answer.reply {
                Reply::Ok(()) if answer.value != value => {
                    let what = format!("both {value} and {} were accepted", answer.value);
                    self.wrong(ONE, answer.span.end, what);
                }
                Reply::Refused { code, .. } if answer.value == value => {
                    let what = format!("{value} is the answer and was refused: {code}");
                    self.wrong(AGAIN, answer.span.end, what);
                }
                _ => {}
            }
        }
        if self.story.state() != "completed" {
            let what = format!("{value} was accepted, the wait is {}", self.story.state());
            self.wrong(ONE, self.accepted().map_or(0, |(_, end)| end), what);
        }
        // Once anybody knew that the wait is over, no answer that came later can have won.
        let first_try = self.tried(&value).unwrap_or(0);
        if let Some(known) = self.known_over().filter(|known| *known < first_try) {
            let what = format!("known to be over at {known} µs, before {value} was sent");
            self.wrong(ONE, first_try, what);
        }
    }

    /// When somebody first knew that the wait is over.
    fn known_over(&self) -> Option<At> {
        let refused = self.story.answers.iter().filter_map(|answer| match &answer.reply {
            Reply::Refused { state: Some(_), .. } => Some(answer.span.end),
            _ => None,
        });
        let cancelled = self.story.cancels.iter().filter_map(|cancel| match &cancel.reply {
            Reply::Ok(()) | Reply::Refused { state: Some(_), .. } => Some(cancel.span.end),
            _ => None,
        });
        let seen =
            self.story.pulls.iter().filter(|pull| !pull.delete).filter_map(|pull| {
                match &pull.reply {
                    Reply::Ok(Pulled::Answer(_)) | Reply::Refused { state: Some(_), .. } => {
                        Some(pull.span.end)
                    }
                    _ => None,
                }
            });
        refused.chain(cancelled).chain(seen).min()
    }

    /// Whoever is told that a wait is over in a way: that way must have been possible by then.
    fn refused_for_a_reason(&mut self) {
        let told: Vec<(At, String)> = self.told_over().collect();
        for (end, state) in told {
            let possible = match state.as_str() {
                "completed" => self.story.answers.iter().any(|a| a.span.begin < end),
                "cancelled" => {
                    let variant = self.story.opened_by.first().map(|p| p.variant);
                    let mut moved_on = self.story.publishes.iter();
                    self.story.cancels.iter().any(|c| c.span.begin < end)
                        || moved_on.any(|p| Some(p.variant) != variant && p.span.begin < end)
                }
                "timed-out" => {
                    self.story.deadline().is_some_and(|at| self.book.skew.latest(end) >= at)
                }
                _ => false,
            };
            if !possible {
                self.wrong(REASON, end, format!("told {state}, which it cannot have been"));
            }
        }
        // Only the answer that won explains why another one lost to an answer.
        if let Some((value, _)) = self.accepted() {
            let (value, first_try) = (value.clone(), self.tried(value).unwrap_or(0));
            for answer in self.story.answers.clone() {
                if matches!(&answer.reply, Reply::Refused { state: Some(_), .. })
                    && answer.span.end < first_try
                {
                    let what = format!("{} was refused before {value} was sent", answer.value);
                    self.wrong(REASON, answer.span.end, what);
                }
            }
        }
    }

    fn told_over(&self) -> impl Iterator<Item = (At, String)> {
        fn state<T>(reply: &Reply<T>, end: At) -> Option<(At, String)> {
            match reply {
                Reply::Refused { state: Some(state), .. } => Some((end, state.to_string())),
                _ => None,
            }
        }
        let answers = self.story.answers.iter().filter_map(|a| state(&a.reply, a.span.end));
        let cancels = self.story.cancels.iter().filter_map(|c| state(&c.reply, c.span.end));
        let pulls = self.story.pulls.iter().filter_map(|p| state(&p.reply, p.span.end));
        answers.chain(cancels).chain(pulls)
    }

    /// Everybody who learned how it ended learned the same.
    fn ended_once(&mut self) {
        let last = self.story.state().to_owned();
        if last.is_empty() {
            return;
        }
        let told: Vec<_> = self.told_over().filter(|(_, state)| *state != last).collect();
        for (at, state) in told {
            self.wrong(END, at, format!("told {state}, and it is {last}"));
        }
        for cancel in self.story.cancels.clone() {
            if matches!(cancel.reply, Reply::Ok(())) && last != "cancelled" {
                let what = format!("withdrawing was acknowledged, and it is {last}");
                self.wrong(END, cancel.span.end, what);
            }
        }
        let odd = |status: u16, state: bool| !(matches!(status, 409 | 410) && state);
        let mut wrong = Vec::new();
        let mut look = |what: &str, end: At, reply: Option<(u16, &str, bool)>| {
            if let Some((status, code, state)) = reply
                && odd(status, state)
            {
                wrong.push((end, format!("{what} got {status} {code}")));
            }
        };
        fn refusal<T>(reply: &Reply<T>) -> Option<(u16, &str, bool)> {
            match reply {
                Reply::Refused { status, code, state } => Some((*status, code, state.is_some())),
                _ => None,
            }
        }
        for answer in &self.story.answers {
            look("an answer", answer.span.end, refusal(&answer.reply));
        }
        for cancel in &self.story.cancels {
            look("withdrawing", cancel.span.end, refusal(&cancel.reply));
        }
        for pull in &self.story.pulls {
            look("a look at the answer", pull.span.end, refusal(&pull.reply));
        }
        for (at, what) in wrong {
            self.wrong(REPLY, at, what);
        }
    }

    /// What was seen through any replica.
    fn looked_at(&mut self) {
        let accepted = self.accepted().map(|(value, end)| (value.clone(), end));
        for pull in self.story.pulls.clone() {
            if pull.delete {
                continue;
            }
            match (&pull.reply, &accepted) {
                (Reply::Ok(Pulled::NotYet), Some((value, known))) if *known < pull.span.begin => {
                    let what = format!("{value} was accepted at {known} µs and is not seen");
                    self.wrong(STALE, pull.span.end, what);
                }
                (Reply::Ok(Pulled::Answer(text)), _) => {
                    self.is_the_answer("a look at the answer", text, pull.span.end, None);
                }
                _ => {}
            }
        }
    }

    /// What hosts were told.
    fn told(&mut self) {
        let texts: BTreeSet<Text> =
            self.story.delivered.iter().filter_map(|a| a.answer.clone()).collect();
        if texts.len() > 1 {
            let at = self.story.delivered.last().map_or(0, |a| a.span.begin);
            self.wrong(HOST, at, format!("told {texts:?}"));
        }
        for arrival in self.story.delivered.clone() {
            let text = arrival.answer.clone().unwrap_or_default();
            self.is_the_answer("a host", &text, arrival.span.begin, arrival.via.as_deref());
        }
    }

    /// An answer that somebody got is the one that won, and was sent before.
    fn is_the_answer(&mut self, who: &str, text: &Text, at: At, via: Option<&str>) {
        let state = self.story.state().to_owned();
        let default = self.story.default_text() == Some(text);
        if via.is_some_and(|via| (via == "default") != default) {
            self.wrong(HOST, at, format!("{who} got {text} via {via:?}"));
        }
        if default {
            if state != "timed-out" {
                self.wrong(HOST, at, format!("{who} got the default, and the wait is {state}"));
            }
            return;
        }
        let Some(value) = self.value_of(text).cloned() else {
            self.wrong(HOST, at, format!("{who} got {text}, which nobody sent"));
            return;
        };
        if self.tried(&value).is_none_or(|tried| tried > at) {
            self.wrong(HOST, at, format!("{who} got {text} before it was sent"));
        }
        if state != "completed" {
            self.wrong(HOST, at, format!("{who} got {text}, and the wait is {state}"));
        }
        if let Some((accepted, _)) = self.accepted().filter(|(accepted, _)| **accepted != value) {
            let what = format!("{who} got {text}, and {accepted} was accepted");
            self.wrong(HOST, at, what);
        }
    }

    /// At the end every answer is where it belongs.
    fn delivered(&mut self) {
        let Some(last) = self.story.last else { return };
        if last.via.is_none() {
            return;
        }
        let rows: Vec<_> = self.story.rows.iter().filter(|row| row.delivery).copied().collect();
        let at = self.story.asked_at().unwrap_or(0);
        if rows.is_empty() {
            self.wrong(UNTOLD, at, "there is no delivery".to_owned());
        }
        let taken = self
            .story
            .delivered
            .iter()
            .any(|a| matches!(a.verdict, Verdict::Took | Verdict::LostAck));
        for row in rows {
            match (&*row.name, &*row.state) {
                ("pull", "queued" | "delivered") => {}
                (_, "delivered") if taken => {}
                (name, state) => {
                    let reason = &row.reason;
                    self.wrong(UNTOLD, at, format!("the delivery to {name} is {state} {reason}"));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Fixture, broken, fine};
    use super::*;
    use crate::history::{Answer, Cancel, Pull, Span};

    fn refused(state: &str) -> Reply<()> {
        Reply::Refused { status: 409, code: "wait-closed".into(), state: Some(state.into()) }
    }

    fn another(fixture: &Fixture, begin: At, end: At, text: &str, reply: Reply<()>) -> Answer {
        let mut answer = fixture.history.answers[0].clone();
        answer.span = Span { begin, end };
        answer.text = text.into();
        answer.value = text.into();
        answer.reply = reply;
        answer
    }

    #[test]
    fn two_accepted_answers_are_found() {
        let mut fixture = Fixture::answered();
        let other = another(&fixture, 700_000, 800_000, "\"no\"", Reply::Ok(()));
        fixture.history.answers.push(other);
        broken(&fixture, ONE);
    }

    #[test]
    fn another_answer_that_was_refused_is_fine_and_the_same_is_not() {
        let mut fixture = Fixture::answered();
        let other = another(&fixture, 700_000, 800_000, "\"no\"", refused("completed"));
        fixture.history.answers.push(other);
        fine(&fixture);
        let text = fixture.history.answers[0].text.to_string();
        let same = another(&fixture, 700_000, 800_000, &text, refused("completed"));
        fixture.history.answers.push(same);
        broken(&fixture, AGAIN);
    }

    #[test]
    fn an_answer_that_lost_before_the_winner_was_sent_is_found() {
        let mut fixture = Fixture::answered();
        let before = another(&fixture, 300_000, 310_000, "\"no\"", refused("completed"));
        fixture.history.answers.push(before);
        broken(&fixture, REASON);
        broken(&fixture, ONE);
    }

    #[test]
    fn a_refusal_without_any_reason_is_found() {
        let mut fixture = Fixture::answered();
        fixture.history.waits[0].state = "timed-out".into();
        let refused = another(&fixture, 300_000, 310_000, "\"no\"", refused("timed-out"));
        fixture.history.answers = vec![refused];
        broken(&fixture, REASON);
    }

    #[test]
    fn an_acknowledged_answer_that_is_not_stored_is_found() {
        let mut fixture = Fixture::answered();
        fixture.history.waits[0].state = "open".into();
        broken(&fixture, ONE);
    }

    #[test]
    fn withdrawn_and_answered_is_found() {
        let mut fixture = Fixture::answered();
        let span = Span { begin: 600_000, end: 610_000 };
        let wait = fixture.history.answers[0].wait.clone();
        fixture.history.cancels.push(Cancel { span, replica: 0, wait, reply: Reply::Ok(()) });
        broken(&fixture, END);
    }

    fn look(fixture: &Fixture, begin: At, reply: Reply<Pulled>) -> Pull {
        let span = Span { begin, end: begin + 1_000 };
        let wait = fixture.history.answers[0].wait.clone();
        Pull { span, replica: 1, wait, delete: false, reply }
    }

    #[test]
    fn a_look_that_does_not_see_an_acknowledged_answer_is_found() {
        let mut fixture = Fixture::answered();
        let early = look(&fixture, 505_000, Reply::Ok(Pulled::NotYet));
        fixture.history.pulls.push(early);
        fine(&fixture);
        let late = look(&fixture, 900_000, Reply::Ok(Pulled::NotYet));
        fixture.history.pulls.push(late);
        broken(&fixture, STALE);
    }

    #[test]
    fn an_answer_that_nobody_sent_is_found() {
        let mut fixture = Fixture::answered();
        let look = look(&fixture, 900_000, Reply::Ok(Pulled::Answer("\"invented\"".into())));
        fixture.history.pulls.push(look);
        broken(&fixture, HOST);
    }

    #[test]
    fn two_answers_for_a_host_are_found() {
        let mut fixture = Fixture::answered();
        let other = another(&fixture, 450_000, 800_000, "\"no\"", Reply::Unknown);
        fixture.history.answers.push(other);
        let mut told = fixture.delivery().clone();
        told.answer = Some("\"no\"".into());
        fixture.history.arrivals.push(told);
        broken(&fixture, HOST);
    }

    #[test]
    fn an_answer_that_reached_nobody_is_found() {
        let mut fixture = Fixture::answered();
        fixture.history.arrivals.retain(|a| a.answer.is_none());
        broken(&fixture, UNTOLD);
        let mut fixture = Fixture::answered();
        fixture.history.rows.retain(|row| !row.delivery);
        broken(&fixture, UNTOLD);
    }

    #[test]
    fn an_unknown_wait_is_found() {
        let mut fixture = Fixture::answered();
        let reply = Reply::Refused { status: 404, code: "wait-not-found".into(), state: None };
        let lost = another(&fixture, 600_000, 610_000, "\"no\"", reply);
        fixture.history.answers.push(lost);
        broken(&fixture, REPLY);
    }
}
