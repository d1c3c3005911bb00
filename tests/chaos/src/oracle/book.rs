//! A history by waits.

use super::Skew;
use crate::clock::At;
use crate::history::{
    Answer, Arrival, Cancel, Fed, FinalRow, FinalWait, History, Publish, Pull, Reply, WaitKey,
};
use crate::schedule::Place;
use crate::text::Text;
use std::collections::{BTreeMap, HashMap};

/// Everything about one wait.
#[derive(Debug, Default)]
pub struct Story<'h> {
    /// Attempts of the publish that opened it.
    pub opened_by: Vec<&'h Publish>,
    /// Attempts to publish under the same thread and question, of any generation.
    pub publishes: Vec<&'h Publish>,
    /// Attempts to answer it.
    pub answers: Vec<&'h Answer>,
    /// Attempts to withdraw it.
    pub cancels: Vec<&'h Cancel>,
    /// Looks at its answer.
    pub pulls: Vec<&'h Pull>,
    /// Announcements that arrived, of all events.
    pub announced: Vec<&'h Arrival>,
    /// Answers that arrived at hosts.
    pub delivered: Vec<&'h Arrival>,
    /// What the feed told.
    pub fed: Vec<&'h Fed>,
    /// How it stands at the end.
    pub last: Option<&'h FinalWait>,
    /// Its announcements and deliveries at the end.
    pub rows: Vec<&'h FinalRow>,
}

impl Story<'_> {
    /// The state at the end; empty when the wait is not there.
    #[must_use]
    pub fn state(&self) -> &str {
        self.last.map_or("", |last| &last.state)
    }

    /// The deadline and the default of the envelope that opened it.
    #[must_use]
    pub fn deadline(&self) -> Option<i64> {
        self.opened_by.first().and_then(|publish| publish.deadline)
    }

    /// The default's text.
    #[must_use]
    pub fn default_text(&self) -> Option<&Text> {
        self.opened_by.first().and_then(|publish| publish.default.as_ref())
    }

    /// When the opening publish was first sent.
    #[must_use]
    pub fn asked_at(&self) -> Option<At> {
        self.opened_by.iter().map(|publish| publish.span.begin).min()
    }

    /// When it was first known to be taken.
    #[must_use]
    pub fn acknowledged_at(&self) -> Option<At> {
        let known = self.opened_by.iter().filter(|p| matches!(p.reply, Reply::Ok(_)));
        known.map(|publish| publish.span.end).min()
    }

    /// Announcements of one event at one place.
    pub fn at<'s>(&'s self, place: Place, event: &'s str) -> impl Iterator<Item = &'s Arrival> {
        let all = self.announced.iter().copied();
        all.filter(move |arrival| arrival.place == place && &*arrival.event == event)
    }
}

/// A history, looked up by waits.
#[derive(Debug)]
pub struct Book<'h> {
    /// All of it.
    pub history: &'h History,
    /// The clocks.
    pub skew: Skew,
    /// By wait.
    pub stories: BTreeMap<WaitKey, Story<'h>>,
    /// Publishes by event id.
    pub by_event: HashMap<&'h str, Vec<&'h Publish>>,
    /// Deliveries whose key is of no wait.
    pub strays: Vec<&'h Arrival>,
    /// Announcers that took part.
    pub announcers: Vec<Place>,
}

impl<'h> Book<'h> {
    /// Sorts a history.
    #[must_use]
    pub fn new(history: &'h History) -> Self {
        let mut stories: BTreeMap<WaitKey, Story<'h>> = BTreeMap::new();
        let mut by_event: HashMap<&str, Vec<&Publish>> = HashMap::new();
        let mut by_question: HashMap<(&str, &str), Vec<&Publish>> = HashMap::new();
        for publish in &history.publishes {
            by_event.entry(&publish.event_id).or_default().push(publish);
            by_question.entry((&publish.thread, &publish.question)).or_default().push(publish);
        }
        let mut by_rest: HashMap<&str, &WaitKey> = HashMap::new();
        for last in &history.waits {
            let story = stories.entry(last.wait.clone()).or_default();
            story.last = Some(last);
            story.opened_by = by_event.get(&*last.event_id).cloned().unwrap_or_default();
            by_rest.insert(rest(&last.dedupe_key), &last.wait);
        }
        // What was acknowledged has its story, though the store may have lost it.
        for publish in &history.publishes {
            let Reply::Ok(accepted) = &publish.reply else { continue };
            let key = WaitKey {
                thread: publish.thread.clone(),
                question: publish.question.clone(),
                generation: accepted.generation,
            };
            let story = stories.entry(key).or_default();
            if story.last.is_none() && story.opened_by.is_empty() {
                story.opened_by = by_event[&*publish.event_id].clone();
            }
        }
        for answer in &history.answers {
            stories.entry(answer.wait.clone()).or_default().answers.push(answer);
        }
        for cancel in &history.cancels {
            stories.entry(cancel.wait.clone()).or_default().cancels.push(cancel);
        }
        for pull in &history.pulls {
            stories.entry(pull.wait.clone()).or_default().pulls.push(pull);
        }
        for fed in &history.fed {
            stories.entry(fed.wait.clone()).or_default().fed.push(fed);
        }
        for row in &history.rows {
            stories.entry(row.wait.clone()).or_default().rows.push(row);
        }
        let mut strays = Vec::new();
        for arrival in &history.arrivals {
            let key = match arrival.generation {
                Some(generation) => Some(WaitKey {
                    thread: arrival.thread.clone(),
                    question: arrival.question.clone(),
                    generation,
                }),
                None => {
                    let rest = rest(&arrival.dedupe_key);
                    let found = by_rest.get(rest).or_else(|| by_rest.get(once(rest)));
                    found.map(|key| (*key).clone())
                }
            };
            match key {
                None => strays.push(arrival),
                Some(key) => {
                    let story = stories.entry(key).or_default();
                    match arrival.place {
                        Place::Host | Place::ReplyTo => story.delivered.push(arrival),
                        _ => story.announced.push(arrival),
                    }
                }
            }
        }
        for (key, story) in &mut stories {
            let asked = by_question.get(&(&*key.thread, &*key.question));
            story.publishes = asked.cloned().unwrap_or_default();
            story.announced.sort_by_key(|arrival| arrival.span.begin);
            story.delivered.sort_by_key(|arrival| arrival.span.begin);
        }
        let mut announcers: Vec<_> = [Place::Hook, Place::Life, Place::Stream].into();
        announcers.retain(|place| history.rows.iter().any(|row| *row.name == *place.name()));
        let skew = Skew::new(history);
        Self { history, skew, stories, by_event, strays, announcers }
    }
}

/// A dedupe key without its event.
#[must_use]
pub(super) fn rest(dedupe_key: &str) -> &str {
    dedupe_key.split_once(':').map_or(dedupe_key, |(_, rest)| rest)
}

/// The key's rest without the mark of an answer that was sent again.
#[must_use]
pub(super) fn once(rest: &str) -> &str {
    match rest.rsplit_once(":r") {
        Some((before, count)) if count.bytes().all(|b| b.is_ascii_digit()) => before,
        _ => rest,
    }
}
