//! `[announcers.NAME]` and `[[routes]]`.

use super::reading::{Reading, check_name, not_supported, parsed, tenant};
use super::sending::{Sending, check_max_bytes, read_matcher, read_sending};
use answerback_contract::settings::{Place, Problem, Setting, Settings, Value};
use answerback_contract::{Event, Kind, Purpose, Target, TenantId};
use answerback_core::Name;
use answerback_core::matching::Matcher;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// `[announcers.NAME]`.
#[derive(Clone)]
pub struct AnnouncerConfig {
    /// Its name.
    pub name: Name,
    /// `type`.
    pub kind: &'static str,
    /// Whose waits it announces.
    pub tenant: TenantId,
    /// Which of them.
    pub matcher: Matcher,
    /// Which events of them.
    pub events: Vec<Event>,
    /// `ordering = "thread"`: a thread's messages go out in order.
    pub ordered: bool,
    /// Whether events carry the answer.
    pub include_answer: bool,
    /// How messages go out.
    pub sending: Sending,
    /// Where to.
    pub target: Arc<dyn Target>,
}

/// One of `[[routes]]`.
#[derive(Clone)]
pub struct RouteConfig {
    /// Its name.
    pub name: Name,
    /// Whose answers it takes.
    pub tenant: TenantId,
    /// Which of them.
    pub matcher: Matcher,
    /// Where they go.
    pub to: RouteTo,
}

/// Where a route's answers go.
#[derive(Clone)]
pub enum RouteTo {
    /// `type = "pull"`: the host comes for them.
    Pull,
    /// They are sent.
    Send {
        /// `type`.
        kind: &'static str,
        /// How.
        sending: Sending,
        /// Where to.
        target: Arc<dyn Target>,
    },
}

impl fmt::Debug for AnnouncerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnnouncerConfig")
            .field("name", &self.name)
            .field("kind", &self.kind)
            .field("tenant", &self.tenant)
            .field("matcher", &self.matcher)
            .field("events", &self.events)
            .field("ordered", &self.ordered)
            .field("include_answer", &self.include_answer)
            .field("sending", &self.sending)
            .field("target", &self.target.describe())
            .finish()
    }
}

impl fmt::Debug for RouteConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteConfig")
            .field("name", &self.name)
            .field("tenant", &self.tenant)
            .field("matcher", &self.matcher)
            .field("to", &self.to)
            .finish()
    }
}

impl fmt::Debug for RouteTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pull => f.write_str("Pull"),
            Self::Send { kind, sending, target } => f
                .debug_struct("Send")
                .field("kind", kind)
                .field("sending", sending)
                .field("target", &target.describe())
                .finish(),
        }
    }
}

/// The announcers by name; a single `log` when none is configured (contract, section 7).
pub(super) fn read_announcers(
    root: &mut Settings,
    reading: &mut Reading<'_>,
) -> Vec<AnnouncerConfig> {
    let mut tables = named_tables(root, "announcers");
    if tables.is_empty() && !root.has_problems() {
        let value = Value::String("log".to_owned());
        let table = BTreeMap::from([("type".to_owned(), Setting { value, place: Place::BuiltIn })]);
        let setting = Setting { value: Value::Table(table), place: Place::BuiltIn };
        tables.insert("log".to_owned(), setting);
    }
    let mut announcers = Vec::with_capacity(tables.len());
    for (name, setting) in tables {
        let path = format!("announcers.{name}");
        let Some(mut settings) = reading.as_table(path, setting.clone()) else { continue };
        if let Err(what) = check_name(&name) {
            settings.problem("", setting.place, what);
        }
        announcers.extend(read_announcer(&name, settings, reading));
    }
    announcers
}

/// Refuses `[sources.NAME]`: HTTP is the only source of this version.
pub(super) fn read_sources(root: &mut Settings) {
    for (name, setting) in named_tables(root, "sources") {
        let what = "sources are not supported by this version; take the table out and send messages by HTTP, which is always on";
        root.problem(&format!("sources.{name}"), setting.place, what);
    }
}

fn named_tables(root: &mut Settings, key: &'static str) -> BTreeMap<String, Setting> {
    let Some(setting) = root.take(key) else { return BTreeMap::new() };
    match setting.value {
        Value::Table(tables) => tables,
        _ => {
            root.problem(key, setting.place, format!("must be tables: [{key}.NAME]"));
            BTreeMap::new()
        }
    }
}

fn read_announcer(
    name: &str,
    mut settings: Settings,
    reading: &mut Reading<'_>,
) -> Option<AnnouncerConfig> {
    let s = &mut settings;
    let kind = read_kind(s, Purpose::Announce, reading);
    let max_bytes_place = s.place_of("max_bytes");
    let tenant = tenant(s);
    let matcher = read_matcher(s, reading);
    let events_place = s.place_of("events");
    let events = read_events(s);
    if events.contains(&Event::Reminder) {
        reading.notes.push(Problem {
            place: events_place,
            key: format!("announcers.{name}.events"),
            what: "\"wait.reminder\" has no effect: this version sends no reminders".to_owned(),
        });
    }
    let ordered = s.choice("ordering", &[("thread", true), ("none", false)]).unwrap_or(true);
    let include_answer = s.boolean("include_answer").unwrap_or(false);
    let sending = read_sending(s, reading);
    not_supported(s, "claim_check");
    not_supported(s, "include_link");
    let kind = give_up_without(kind, &mut settings, reading)?;
    let target = validate(&kind, Purpose::Announce, &mut settings);
    if let Some(target) = &target {
        check_max_bytes(&mut settings, max_bytes_place, &sending, &**target);
    }
    reading.finish(settings);
    Some(AnnouncerConfig {
        name: Name::new(name),
        kind: kind.name(),
        tenant,
        matcher,
        events,
        ordered,
        include_answer,
        sending,
        target: target?,
    })
}

/// The routes in their order.
pub(super) fn read_routes(root: &mut Settings, reading: &mut Reading<'_>) -> Vec<RouteConfig> {
    let mut routes: Vec<RouteConfig> = Vec::new();
    let mut names: Vec<String> = Vec::new();
    for mut settings in reading.items(root, "routes") {
        let place = settings.place_of("name");
        let name = read_route_name(&mut settings, &names);
        names.extend(name.clone());
        routes.extend(read_route(&name.unwrap_or_default(), place, settings, reading));
    }
    routes
}

fn read_route_name(settings: &mut Settings, others: &[String]) -> Option<String> {
    if !settings.has("name") {
        settings.required_string("name", "a name, which is how lists and metrics call the route");
        return None;
    }
    parsed(settings, "name", |text| {
        check_name(text)?;
        if text == "reply_to" {
            return Err("\"reply_to\" is what lists call answers to an envelope's own reply_to; choose another name".to_owned());
        }
        if others.iter().any(|other| other == text) {
            return Err(format!("{text:?} stands twice; names must differ"));
        }
        Ok(text.to_owned())
    })
}

fn read_route(
    name: &str,
    name_place: Place,
    mut settings: Settings,
    reading: &mut Reading<'_>,
) -> Option<RouteConfig> {
    let tenant = tenant(&mut settings);
    let matcher = read_matcher(&mut settings, reading);
    let route = |to| RouteConfig { name: Name::new(name), tenant, matcher, to };
    let pull = settings.take("type");
    if matches!(&pull, Some(Setting { value: Value::String(text), .. }) if text == "pull") {
        reading.finish(settings);
        return Some(route(RouteTo::Pull));
    }
    if name == "pull" {
        let what = "\"pull\" is what lists call answers that hosts come for; choose another name";
        settings.problem("name", name_place, what);
    }
    let kind = match pull {
        Some(setting) => kind_of(&mut settings, setting, Purpose::Answer, reading),
        None => {
            missing_type(&mut settings, Purpose::Answer, reading);
            None
        }
    };
    let max_bytes_place = settings.place_of("max_bytes");
    let sending = read_sending(&mut settings, reading);
    let kind = give_up_without(kind, &mut settings, reading)?;
    let target = validate(&kind, Purpose::Answer, &mut settings);
    if let Some(target) = &target {
        check_max_bytes(&mut settings, max_bytes_place, &sending, &**target);
    }
    reading.finish(settings);
    Some(route(RouteTo::Send { kind: kind.name(), sending, target: target? }))
}

fn read_kind(
    settings: &mut Settings,
    purpose: Purpose,
    reading: &Reading<'_>,
) -> Option<Arc<dyn Kind>> {
    match settings.take("type") {
        Some(setting) => kind_of(settings, setting, purpose, reading),
        None => {
            missing_type(settings, purpose, reading);
            None
        }
    }
}

fn missing_type(settings: &mut Settings, purpose: Purpose, reading: &Reading<'_>) {
    settings.missing("type", &format!("one of {}", reading.registry.names(purpose)));
}

fn kind_of(
    settings: &mut Settings,
    setting: Setting,
    purpose: Purpose,
    reading: &Reading<'_>,
) -> Option<Arc<dyn Kind>> {
    let found = match &setting.value {
        Value::String(name) => reading.registry.find(purpose, name).cloned(),
        _ => Err(format!("must be one of {}", reading.registry.names(purpose))),
    };
    found.map_err(|what| settings.problem("type", setting.place, what)).ok()
}

/// Without a kind nobody knows which further keys are right: only what was found so far is told.
fn give_up_without(
    kind: Option<Arc<dyn Kind>>,
    settings: &mut Settings,
    reading: &mut Reading<'_>,
) -> Option<Arc<dyn Kind>> {
    if kind.is_none() {
        reading.problems.extend(settings.take_problems());
    }
    kind
}

fn validate(
    kind: &Arc<dyn Kind>,
    purpose: Purpose,
    settings: &mut Settings,
) -> Option<Arc<dyn Target>> {
    kind.validate(purpose, settings).map_err(|problems| settings.extend(problems)).ok()
}

fn read_events(settings: &mut Settings) -> Vec<Event> {
    let place = settings.place_of("events");
    let Some(names) = settings.strings("events") else { return vec![Event::Created] };
    let mut events = Vec::with_capacity(names.len());
    for name in &names {
        match Event::from_name(name) {
            Some(event) if !events.contains(&event) => events.push(event),
            Some(_) => {}
            None => {
                let all: Vec<_> = Event::ALL.into_iter().map(Event::name).collect();
                let what = format!("{name:?} is no event; there are {}", all.join(", "));
                settings.problem("events", place.clone(), what);
            }
        }
    }
    if names.is_empty() {
        let what = "is empty, so that nothing would be announced; name events, or take it out";
        settings.problem("events", place, what);
    }
    events
}
