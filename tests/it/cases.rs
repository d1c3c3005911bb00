//! What agent-wait really sent (`tests/cases`), through the daemon to every announcer, compared with
//! what agent-wait's own announcers made of it where those were right.

use crate::bed::{SECRET, all_of, escaped, now, post_raw, settled};
use crate::buses::{ANNOUNCERS, Buses};
use answerback::contract::Time;
use answerback_testkit::cases::{self, Case};
use answerback_testkit::kafka::Record;
use answerback_testkit::receiver::{Received, agent_wait_signature};
use answerback_testkit::{Api, Daemon};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// A capture as it is posted.
pub(crate) struct Posted {
    pub(crate) case: Case,
    pub(crate) body: String,
    pub(crate) headers: Vec<(String, String)>,
}

impl Posted {
    /// A capture was made on one day, and its deadline may have passed since: then its year is a
    /// hundred later, in the body as in what agent-wait sent of it, and it is signed anew. Deadlines
    /// that were past on that day stay.
    pub(crate) fn of(mut case: Case) -> Option<Self> {
        let mut body = case.envelope.clone()?;
        let mut headers = case.headers();
        if let Some(deadline) = deadline(&body) {
            let soon = now().after(Duration::from_secs(3_600));
            let passed = Time::parse(&deadline).is_ok_and(|at| at.is_some_and(|at| at < soon));
            if passed && deadline.starts_with("2026-1") {
                let moved = deadline.replacen("2026", "2126", 1);
                body = body.replace(&deadline, &moved);
                let all = case.all.to_string().replace(&deadline, &moved);
                case.all = serde_json::from_str(&all).unwrap();
                for (name, value) in &mut headers {
                    if name.eq_ignore_ascii_case("x-agent-wait-signature") {
                        *value = agent_wait_signature(SECRET, body.as_bytes());
                    }
                }
            }
        }
        // Signed with another secret on purpose: the daemon's refusal of that has its own test.
        if case.all["signature_verified"] == false {
            for (name, value) in &mut headers {
                if name.eq_ignore_ascii_case("x-agent-wait-signature") {
                    *value = agent_wait_signature(SECRET, body.as_bytes());
                }
            }
        }
        Some(Self { case, body, headers })
    }

    pub(crate) fn name(&self) -> &str {
        &self.case.name
    }

    fn number(&self) -> &str {
        self.case.name.split('-').next().unwrap()
    }

    /// The ids as the daemon takes them: an integer as its digits.
    pub(crate) fn id(&self, field: &str) -> String {
        let json: Value = serde_json::from_str(&self.body).unwrap();
        match &json[field] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }
    }

    pub(crate) async fn post(&self, api: &Api) -> answerback_testkit::Reply {
        post_raw(api, "/v1/waits", &self.headers, self.body.clone()).await
    }
}

fn deadline(body: &str) -> Option<String> {
    let (_, rest) = body.split_once("\"expires_at\": \"")?;
    Some(rest.split_once('"')?.0.to_owned())
}

/// Which are refused, and the word that the refusal names: the field, or of a body that is no JSON
/// where.
const REFUSED: [(&str, &str); 7] = [
    ("028", "column"),
    ("120", "thread_id"),
    ("121", "thread_id"),
    ("126", "thread_id"),
    ("128", "thread_id"),
    ("142", "question_id"),
    ("183", "column"),
];

/// Which were past their deadline when they were asked.
const PAST: [&str; 6] = ["130", "132", "133", "135", "155", "156"];

/// Groups of cases that have no question id in common, so that none is another's duplicate.
fn groups() -> Vec<Vec<Posted>> {
    let mut groups: Vec<(BTreeSet<String>, Vec<Posted>)> = Vec::new();
    for posted in cases::all().into_iter().filter_map(Posted::of) {
        let refused = REFUSED.iter().any(|(number, _)| *number == posted.number());
        let id = if refused { posted.name().to_owned() } else { posted.id("question_id") };
        match groups.iter_mut().find(|(ids, _)| !ids.contains(&id)) {
            Some((ids, group)) => {
                ids.insert(id);
                group.push(posted);
            }
            None => groups.push((BTreeSet::from([id]), vec![posted])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

#[tokio::test]
async fn every_capture_is_refused_or_seen_unchanged_at_every_announcer() {
    let groups = groups();
    assert_eq!(groups.iter().map(Vec::len).sum::<usize>(), 124);
    let runs = groups.iter().map(|group| run(group));
    let wrong: Vec<String> = futures::future::join_all(runs).await.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Posts a group to a daemon of its own and gives what is not as it must be.
async fn run(group: &[Posted]) -> Vec<String> {
    let buses = Buses::create().await;
    let daemon = buses.setup().start().await;
    let mut wrong = Vec::new();
    let mut open = Vec::new();
    let unkeyed = Api::new(daemon.url(""));
    for posted in group {
        let refused = REFUSED.iter().find(|(number, _)| *number == posted.number());
        let reply = posted.post(&unkeyed).await;
        match (refused, reply.status) {
            (Some((_, word)), 400) if reply.code() == "bad-input" => {
                if !reply.text().contains(word) {
                    wrong.push(format!(
                        "{}: does not name {word}: {}",
                        posted.name(),
                        reply.text()
                    ));
                }
            }
            (None, 202) if PAST.contains(&posted.number()) => {
                past(&daemon, posted, &mut wrong).await
            }
            (None, 202) => open.push(posted),
            _ => wrong.push(format!("{}: {} {}", posted.name(), reply.status, reply.text())),
        }
    }
    settled(&daemon).await;
    // Above 256 KiB SNS takes nothing unless it is told that it may.
    let too_large = |posted: &Posted| posted.body.len() > 262_144;
    let mut dead = Vec::new();
    for row in all_of(daemon.api(), "/v1/announcements?state=dead").await {
        let of = open.iter().find(|p| row["question_id"] == p.id("question_id")).unwrap();
        dead.push((of.name(), row["announcer"].as_str().unwrap().to_owned()));
        if row["announcer"] != "everyone" || !too_large(of) || row["reason"] != "too-large" {
            wrong.push(format!("{}: dead: {row}", of.name()));
        }
    }
    let arrived =
        |announcer: &str| open.len() - dead.iter().filter(|(_, at)| at == announcer).count();
    let seen = Seen {
        hook: buses.hook.all().into_iter().map(|r| (r.text().to_owned(), r)).collect(),
        standard: by_body(buses.moto.receive(&buses.standard, arrived("standard")).await),
        fifo: by_body(buses.moto.receive(&buses.fifo, arrived("fifo")).await),
        raw: by_body(buses.moto.receive(&buses.raw, arrived("everyone")).await),
        wrapped: buses
            .moto
            .receive(&buses.wrapped, arrived("everyone"))
            .await
            .into_iter()
            .map(|m| serde_json::from_str::<Value>(m["Body"].as_str().unwrap()).unwrap())
            .map(|m| (m["Message"].as_str().unwrap().to_owned(), m))
            .collect(),
        rows: buses.moto.items(&buses.table).await,
        stream: buses
            .records(arrived("stream"))
            .await
            .into_iter()
            .map(|r| (r.value.clone().unwrap(), r))
            .collect(),
        log: log_lines(&daemon),
    };
    let counts = [
        (seen.hook.len(), buses.hook.all().len()),
        (seen.rows.len(), arrived("table")),
        (seen.hook.len(), arrived("hook")),
    ];
    if counts.iter().any(|(one, other)| one != other) {
        wrong.push(format!("not one of each: {counts:?}"));
    }
    for posted in &open {
        for (bus, difference) in seen.differences(posted) {
            if bus == "sns" && too_large(posted) {
                continue;
            }
            let difference: String = difference.chars().take(1_500).collect();
            wrong.push(format!("{}: {bus}: {difference}", posted.name()));
        }
        stored(&daemon, posted, &mut wrong).await;
    }
    wrong
}

fn by_body(messages: Vec<Value>) -> HashMap<String, Value> {
    messages.into_iter().map(|m| (m["Body"].as_str().unwrap().to_owned(), m)).collect()
}

/// The lines of the log announcer by question id.
fn log_lines(daemon: &Daemon) -> HashMap<String, String> {
    let log = daemon.log();
    let lines = log.lines().filter(|line| line.contains("answerback::announce"));
    lines
        .map(|line| {
            let json: Value = serde_json::from_str(line).unwrap();
            (json["question_id"].as_str().unwrap().to_owned(), line.to_owned())
        })
        .collect()
}

/// Past its deadline when it came: announced nowhere, ended at once, its default sent once.
async fn past(daemon: &Daemon, posted: &Posted, wrong: &mut Vec<String>) {
    let path = path_of(posted);
    let wait = daemon.api().until(&path, |wait| wait["state"] == "timed-out").await;
    let body: Value = serde_json::from_str(&posted.body).unwrap();
    let has_default = !body["default"].is_null();
    let sent = wait["deliveries"].as_array().map(Vec::len);
    if wait["announcements"] != json!([]) || sent != Some(usize::from(has_default)) {
        wrong.push(format!("{}: past, and yet: {wait}", posted.name()));
    }
    if has_default && wait["answer"]["message"]["answer"] != body["default"] {
        wrong.push(format!("{}: another default: {}", posted.name(), wait["answer"]));
    }
}

fn path_of(posted: &Posted) -> String {
    format!(
        "/v1/waits/-?question_id={}&thread_id={}",
        escaped(&posted.id("question_id")),
        escaped(&posted.id("thread_id"))
    )
}

/// The API shows the envelope with the text that came.
async fn stored(daemon: &Daemon, posted: &Posted, wrong: &mut Vec<String>) {
    let reply = daemon.api().get(&path_of(posted)).await;
    if reply.status != 200 || !reply.text().contains(&posted.body) {
        let text: String = reply.text().chars().take(600).collect();
        wrong.push(format!("{}: shown as {} {text}", posted.name(), reply.status));
        return;
    }
    let wait: Value = reply.json();
    let announcers: BTreeSet<_> = wait["announcements"]
        .as_array()
        .unwrap()
        .iter()
        .map(|a| a["announcer"].to_string())
        .collect();
    if announcers.len() != ANNOUNCERS.len() || wait["state"] != "open" {
        wrong.push(format!("{}: {announcers:?} {}", posted.name(), wait["state"]));
    }
}

struct Seen {
    hook: HashMap<String, Received>,
    standard: HashMap<String, Value>,
    fifo: HashMap<String, Value>,
    raw: HashMap<String, Value>,
    wrapped: HashMap<String, Value>,
    rows: Vec<Value>,
    stream: HashMap<String, Record>,
    log: HashMap<String, String>,
}

impl Seen {
    /// What is not as it must be, by bus.
    fn differences(&self, posted: &Posted) -> Vec<(&'static str, String)> {
        let mut all = Vec::new();
        let mut add = |bus, found: Result<(), String>| all.extend(found.err().map(|e| (bus, e)));
        add("webhook", self.webhook(posted));
        add("sqs", self.queues(posted));
        add("sns", self.notification(posted));
        add("dynamodb", self.row(posted));
        add("kafka", self.record(posted));
        add("log", self.line(posted));
        all
    }

    fn webhook(&self, posted: &Posted) -> Result<(), String> {
        let got = self.hook.get(&posted.body).ok_or("not there unchanged")?;
        // agent-wait sends what HTTP headers do not carry as latin-1 bytes, or not at all.
        let key = header_text(&dedupe_key(posted));
        let same = [
            ("content-type", "application/json"),
            ("x-agent-wait-event", "wait.created"),
            ("x-agent-wait-dedupe-key", &key),
            ("webhook-id", &key),
        ];
        for (name, wanted) in same {
            if got.header(name) != wanted {
                return Err(format!("{name}: {} and not {wanted}", got.header(name)));
            }
        }
        for (name, theirs) in &posted.headers {
            let plain = theirs.bytes().all(|b| b.is_ascii_graphic() && b != b'%');
            let library = name.to_ascii_lowercase().starts_with("x-agent-wait-");
            if plain && library && got.header(name) != theirs {
                return Err(format!("{name}: {} and not agent-wait's {theirs}", got.header(name)));
            }
        }
        if !got.signed_as_agent_wait(SECRET) || !got.signed_as_standard_webhook(SECRET) {
            return Err(format!("signed otherwise: {:?}", got.headers));
        }
        Ok(())
    }

    fn queues(&self, posted: &Posted) -> Result<(), String> {
        let plain = self.standard.get(&posted.body).ok_or("not in the standard queue unchanged")?;
        let attributes = &plain["Attributes"];
        if !attributes["MessageGroupId"].is_null()
            || !attributes["MessageDeduplicationId"].is_null()
        {
            return Err(format!("standard, with attributes of FIFO: {attributes}"));
        }
        let fifo = self.fifo.get(&posted.body).ok_or("not in the FIFO queue unchanged")?;
        let ids = [
            ("MessageGroupId", posted.id("thread_id")),
            ("MessageDeduplicationId", dedupe_key(posted)),
        ];
        for (name, id) in ids {
            let theirs = &posted.case.all["sqs_fifo"][name];
            let wanted = fifo_id(&id);
            // One capture is of an agent-wait that was told how to group.
            let told = posted.number() == "209";
            if wanted == id && theirs.is_string() && *theirs != wanted && !told {
                return Err(format!("{name}: agent-wait has {theirs}, not {wanted}"));
            }
            if fifo["Attributes"][name] != wanted {
                return Err(format!("{name}: {} and not {wanted}", fifo["Attributes"][name]));
            }
        }
        Ok(())
    }

    fn notification(&self, posted: &Posted) -> Result<(), String> {
        let wrapped = self.wrapped.get(&posted.body).ok_or("not in a notification unchanged")?;
        if wrapped["Type"] != "Notification" || wrapped["Subject"] != "wait.created" {
            return Err(format!("wrapped otherwise: {wrapped}"));
        }
        let raw = self.raw.get(&posted.body).ok_or("not there raw and unchanged")?;
        let attributes = raw["MessageAttributes"].as_object().ok_or("without attributes")?;
        sns_attributes(posted, attributes)?;
        for (name, attribute) in attributes {
            let same = &wrapped["MessageAttributes"][name.as_str()];
            if same["Type"] != attribute["DataType"] || same["Value"] != attribute["StringValue"] {
                return Err(format!("{name}: wrapped {same}, raw {attribute}"));
            }
        }
        Ok(())
    }

    fn row(&self, posted: &Posted) -> Result<(), String> {
        let (pk, sk) = (
            format!("THREAD#{}", posted.id("thread_id")),
            format!("WAIT#{}", posted.id("question_id")),
        );
        let row = self.rows.iter().find(|row| row["pk"]["S"] == pk && row["sk"]["S"] == sk);
        let row = row.ok_or_else(|| format!("no row {pk} {sk}"))?;
        let oversize = row["oversize"] == json!({"BOOL": true});
        // Question and text are both in the row, so that it holds envelopes of about half its 400 KB.
        if oversize != ["042", "185", "187"].contains(&posted.number()) {
            return Err(format!("oversize: {oversize}"));
        }
        if !oversize && row["envelope"]["S"] != posted.body.as_str() {
            return Err("another text of the envelope".to_owned());
        }
        let body: Map<String, Value> = serde_json::from_str(&posted.body).unwrap();
        let missing: Vec<_> = body
            .keys()
            .filter(|name| row[name.as_str()].is_null() && !(oversize && *name == "question"))
            .collect();
        if !missing.is_empty() {
            return Err(format!("without {missing:?}"));
        }
        if row["status"]["S"] != "open" || row["generation"]["N"] != "1" || !row["ttl"].is_null() {
            return Err(format!("{} {} {}", row["status"], row["generation"], row["ttl"]));
        }
        let Some(theirs) = posted.case.all["dynamodb"].as_object() else { return Ok(()) };
        for (name, value) in theirs {
            let otherwise = match (name.as_str(), posted.number()) {
                // Ids are strings for the index; the year 10240 is never.
                ("thread_id", "127") => row[name]["S"] == "4471",
                ("question_id", "184") => row[name]["S"] == "42",
                ("expires_at", "082") => row[name]["S"] == "never",
                // agent-wait made a set of a Python set, and a ttl for an open row; the emulator takes
                // an empty name for none.
                ("question", "047" | "035") | ("ttl", _) => true,
                ("question", _) => oversize || value.to_string().contains("@omitted"),
                _ => false,
            };
            if !otherwise && row[name] != *value {
                return Err(format!("{name}: {} and not agent-wait's {value}", row[name]));
            }
        }
        Ok(())
    }

    fn record(&self, posted: &Posted) -> Result<(), String> {
        let record = self.stream.get(&posted.body).ok_or("not there unchanged")?;
        let thread = posted.id("thread_id");
        if record.key.as_deref() != Some(&thread) {
            return Err(format!("key {:?}", record.key));
        }
        let mut wanted = vec![
            ("dedupe_key".to_owned(), dedupe_key(posted)),
            ("type".to_owned(), "wait.created".to_owned()),
            ("thread_id".to_owned(), thread),
        ];
        wanted.extend(string_tags(posted).into_iter().filter(|(name, _)| name != "thread_id"));
        if record.headers != wanted {
            return Err(format!("headers {:?} and not {wanted:?}", record.headers));
        }
        Ok(())
    }

    fn line(&self, posted: &Posted) -> Result<(), String> {
        let line = self.log.get(&posted.id("question_id")).ok_or("no line")?;
        let json: Value = serde_json::from_str(line).unwrap();
        if json["thread_id"] != posted.id("thread_id") || json["dedupe_key"] != dedupe_key(posted) {
            return Err(format!("of another wait: {line}"));
        }
        if line.contains("issue_refund") || line.contains("41000") {
            return Err(format!("with the question: {line}"));
        }
        Ok(())
    }
}

fn dedupe_key(posted: &Posted) -> String {
    format!("wait.created:{}", posted.id("question_id"))
}

/// `%` and all but visible ASCII percent-encoded.
fn header_text(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_graphic() && b != b'%';
    text.bytes()
        .map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") })
        .collect()
}

/// What SQS takes as an id: 1 to 128 visible ASCII characters; else a digest.
fn fifo_id(id: &str) -> String {
    let taken = (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic());
    if taken { id.to_owned() } else { format!("sha256:{}", hex::encode(Sha256::digest(id))) }
}

/// The tags in order; those of the captures are all strings.
fn string_tags(posted: &Posted) -> Vec<(String, String)> {
    let body: Value = serde_json::from_str(&posted.body).unwrap();
    let tags = body["tags"].as_object().cloned().unwrap_or_default();
    tags.into_iter().map(|(name, value)| (name, value.as_str().unwrap().to_owned())).collect()
}

fn sns_attributes(posted: &Posted, attributes: &Map<String, Value>) -> Result<(), String> {
    let string = |text: &str| json!({"DataType": "String", "StringValue": text});
    let thread = posted.id("thread_id");
    let differs = || Err(format!("attributes {}", Value::Object(attributes.clone())));
    if attributes.len() > 10
        || attributes["transition"] != string("created")
        || attributes["thread_id"] != string(&thread)
    {
        return differs();
    }
    let tags = string_tags(posted);
    let filled: Vec<_> = tags.iter().filter(|(_, value)| !value.is_empty()).collect();
    let values: Vec<_> = attributes.values().map(|a| a["StringValue"].clone()).collect();
    match posted.number() {
        // More than fit: seven, and all of them as JSON in `tags`.
        "091" | "094" => {
            let all: Value =
                serde_json::from_str(attributes["tags"]["StringValue"].as_str().unwrap())
                    .map_err(|e| e.to_string())?;
            let seven =
                filled[..7].iter().all(|(_, value)| values.contains(&value.as_str().into()));
            let wanted: Map<String, Value> =
                tags.iter().map(|(n, v)| (n.clone(), v.clone().into())).collect();
            let names = attributes.keys().all(|name| is_attribute_name(name));
            let good = seven && names && all == Value::Object(wanted) && attributes.len() == 10;
            if good { Ok(()) } else { differs() }
        }
        // agent-wait let tags replace `transition` and `thread_id`.
        "095" => {
            let kept = ["HIJACK", "resumed"].iter().all(|v| values.contains(&(*v).into()));
            let good = kept && attributes["question_id"] == string("qqq") && attributes.len() == 5;
            if good { Ok(()) } else { differs() }
        }
        // agent-wait wrote Python's None as the name.
        "097" => {
            let good = attributes["1"] == string("one") && attributes["null"] == string("x");
            if good { Ok(()) } else { differs() }
        }
        _ => {
            let theirs = posted.case.all["sns"]["MessageAttributes"].as_object();
            let ids_are_strings = ["127", "184"].contains(&posted.number());
            match theirs {
                Some(theirs) if !ids_are_strings && theirs != attributes => {
                    Err(format!("agent-wait has {theirs:?}, here are {attributes:?}"))
                }
                _ if attributes.len() != 2 + filled.len() => differs(),
                _ => Ok(()),
            }
        }
    }
}

/// Letters, digits, `_`, `-` and `.`, which neither begins nor ends a name nor stands twice; and no
/// prefix that AWS keeps for itself.
fn is_attribute_name(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
        && !name.starts_with('.')
        && !name.ends_with('.')
        && !name.contains("..")
        && !lower.starts_with("aws.")
        && !lower.starts_with("amazon.")
}
