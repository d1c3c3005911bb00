//! What the configuration makes of a wait: plain data, shared by every decision.

use crate::envelope::Envelope;
use crate::matching::Matcher;
use crate::model::{Destination, Name};
use crate::reply_to::{self, ReplyTo};
use answerback_contract::{Event, TenantId};

/// What happens when an answered question is published again (`[waits] republished_after_answer`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Republished {
    /// The stored answer goes to the host again.
    #[default]
    Resend,
    /// It is asked again, as a new generation.
    AskAgain,
    /// Nothing.
    Ignore,
}

/// An announcer, as far as deciding is concerned.
#[derive(Clone, Debug)]
pub struct AnnouncerRule {
    /// Its name.
    pub name: Name,
    /// Whose waits it announces.
    pub tenant: TenantId,
    /// Which of them.
    pub matcher: Matcher,
    /// Which events.
    pub events: Vec<Event>,
    /// Whether it keeps a row a wait and gets every event that changes it.
    pub follows_state: bool,
    /// Whether a thread's messages go out in order.
    pub ordered: bool,
}

impl AnnouncerRule {
    /// Whether it is told of an event.
    #[must_use]
    pub fn wants(&self, event: Event) -> bool {
        self.events.contains(&event) || (self.follows_state && event != Event::Reminder)
    }
}

/// A route, as far as deciding is concerned.
#[derive(Clone, Debug)]
pub struct RouteRule {
    /// Its name.
    pub name: Name,
    /// Whose answers it takes.
    pub tenant: TenantId,
    /// Which of them.
    pub matcher: Matcher,
    /// Whether answers are kept for the host to come for (`type = "pull"`).
    pub pull: bool,
}

/// Everything that decisions take from the configuration.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// The announcers.
    pub announcers: Vec<AnnouncerRule>,
    /// The routes; the first that matches takes the answer.
    pub routes: Vec<RouteRule>,
    /// Where an envelope's `reply_to` may point (`[reply_to] allow`).
    pub reply_to: reply_to::Allow,
    /// `[waits] republished_after_answer`.
    pub republished: Republished,
    /// `[waits] enforce_allowed_actions`.
    pub enforce_allowed_actions: bool,
}

impl Rules {
    /// The announcers that are told of an event of this wait.
    pub fn announcers_for<'a>(
        &'a self,
        tenant: &'a TenantId,
        envelope: &'a Envelope,
        event: Event,
    ) -> impl Iterator<Item = &'a AnnouncerRule> + 'a {
        self.announcers
            .iter()
            .filter(move |a| a.wants(event) && a.tenant == *tenant && a.matcher.matches(envelope))
    }

    /// Where the answer to this wait goes, and a note when the envelope wished for another place.
    ///
    /// `reply_from` is the envelope whose `reply_to` holds: the newest duplicate's.
    #[must_use]
    pub fn route(
        &self,
        tenant: &TenantId,
        envelope: &Envelope,
        reply_from: &Envelope,
    ) -> (Destination, Option<String>) {
        let route = self.routes.iter().find(|r| r.tenant == *tenant && r.matcher.matches(envelope));
        if let Some(route) = route {
            if route.pull {
                return (Destination::Pull, None);
            }
            return (Destination::Route(route.name.clone()), None);
        }
        let Some(raw) = reply_from.reply_to() else {
            return (Destination::Pull, None);
        };
        match ReplyTo::read(raw).and_then(|place| self.reply_to.check(&place).map(|()| place)) {
            Ok(ReplyTo::Lambda(_)) => (
                Destination::Pull,
                Some("reply_to is not used: this version sends to no function".to_owned()),
            ),
            Ok(place) => (Destination::ReplyTo(place.origin()), None),
            Err(why) => (Destination::Pull, Some(format!("reply_to is not used: {why}"))),
        }
    }
}

#[cfg(test)]
mod tests;
