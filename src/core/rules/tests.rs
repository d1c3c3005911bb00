use super::*;
use crate::testing::envelope;

fn tenant(name: &str) -> TenantId {
    TenantId::new(name).unwrap()
}

fn thread_prefix(prefix: &str) -> Matcher {
    Matcher { thread_prefixes: vec![prefix.to_owned()], ..Matcher::default() }
}

fn route(name: &str, of: &str, matcher: Matcher, pull: bool) -> RouteRule {
    RouteRule { name: Name::new(name), tenant: tenant(of), matcher, pull }
}

fn routed(rules: &Rules, of: &str, members: &str) -> (String, Option<String>) {
    let envelope = envelope(&format!(r#""question":1{members}"#));
    let (destination, note) = rules.route(&tenant(of), &envelope, &envelope);
    let (kind, name) = destination.parts();
    (format!("{kind} {name}"), note)
}

const REPLY_TO: &str = r#","reply_to":{"kind":"http","url":"http://127.0.0.1:8123/answers"}"#;

#[test]
fn the_first_route_of_the_tenant_that_matches_takes_the_answer() {
    let any = Matcher::default;
    let rules = Rules {
        routes: vec![
            route("foreign", "other", any(), false),
            route("unfit", "default", thread_prefix("x"), false),
            route("first", "default", thread_prefix("t"), false),
            route("second", "default", any(), false),
        ],
        reply_to: reply_to::Allow::read(&["http://127.0.0.1:*"]).unwrap(),
        ..Rules::default()
    };
    assert_eq!(routed(&rules, "default", ""), ("route first".to_owned(), None));
    assert_eq!(routed(&rules, "default", REPLY_TO), ("route first".to_owned(), None));
    assert_eq!(routed(&rules, "other", REPLY_TO), ("route foreign".to_owned(), None));
    assert_eq!(routed(&rules, "third", ""), ("pull ".to_owned(), None));
    assert_eq!(
        routed(&rules, "third", REPLY_TO),
        ("reply-to http://127.0.0.1:8123".to_owned(), None)
    );
    let reversed = Rules { routes: rules.routes.iter().rev().cloned().collect(), ..rules };
    assert_eq!(routed(&reversed, "default", "").0, "route second");
}

#[test]
fn a_pull_route_keeps_the_answer_even_from_an_allowed_reply_to() {
    let rules = Rules {
        routes: vec![route("kept", "default", Matcher::default(), true)],
        reply_to: reply_to::Allow::read(&["http://127.0.0.1:*"]).unwrap(),
        ..Rules::default()
    };
    assert_eq!(routed(&rules, "default", REPLY_TO), ("pull ".to_owned(), None));
}

#[test]
fn a_reply_to_is_followed_where_it_is_allowed_and_else_noted() {
    let allowing = |patterns: &[&str]| Rules {
        reply_to: reply_to::Allow::read(patterns).unwrap(),
        ..Rules::default()
    };
    let rules =
        allowing(&["http://127.0.0.1:*", "https://sqs.eu-west-1.amazonaws.com/111122223333/*"]);
    for (reply_to, place) in [
        (r#"{"kind":"http","url":"http://127.0.0.1:1/a?b"}"#, "reply-to http://127.0.0.1:1"),
        (
            r#"{"kind":"sqs","url":"https://sqs.eu-west-1.amazonaws.com/111122223333/q"}"#,
            "reply-to sqs https://sqs.eu-west-1.amazonaws.com/111122223333/q",
        ),
    ] {
        let got = routed(&rules, "default", &format!(r#","reply_to":{reply_to}"#));
        assert_eq!(got, (place.to_owned(), None));
    }
    for reply_to in [
        r#"{"kind":"http","url":"http://127.0.0.2:1/"}"#,
        r#"{"kind":"http","url":"https://127.0.0.1:1/"}"#,
        r#"{"kind":"http","url":"http://user@127.0.0.1:1/"}"#,
        r#"{"kind":"http","url":"http://évil:pass@127.0.0.1:1/"}"#,
        r#"{"kind":"http","url":""}"#,
        r#"{"kind":"http","url":"/answers"}"#,
        r#"{"kind":"http","url":7}"#,
        r#"{"kind":"ftp","url":"ftp://127.0.0.1/"}"#,
        r#"{"kind":"lambda","arn":"arn:aws:lambda:eu-west-1:111122223333:function:x"}"#,
        r#"{"kind":"sqs","url":"https://sqs.eu-west-1.amazonaws.com/999999999999/q"}"#,
        "{}",
    ] {
        let (place, note) = routed(&rules, "default", &format!(r#","reply_to":{reply_to}"#));
        assert_eq!(place, "pull ", "{reply_to}");
        let note = note.unwrap();
        assert!(note.starts_with("reply_to is not used: "), "{note}");
        assert!(!note.contains("pass"), "{note}");
    }
    // Without any allowed place none is.
    assert!(routed(&allowing(&[]), "default", REPLY_TO).1.is_some());
    assert_eq!(
        routed(&allowing(&[]), "default", r#","reply_to":null"#),
        ("pull ".to_owned(), None)
    );
}

#[test]
fn announcers_are_told_of_their_own_tenants_matching_waits_and_of_the_events_they_want() {
    let announcer =
        |name: &str, of: &str, matcher, events: &[Event], follows_state| AnnouncerRule {
            name: Name::new(name),
            tenant: tenant(of),
            matcher,
            events: events.to_vec(),
            follows_state,
            ordered: false,
        };
    let rules = Rules {
        announcers: vec![
            announcer("plain", "default", Matcher::default(), &[Event::Created], false),
            announcer("all", "default", Matcher::default(), &Event::ALL, false),
            announcer("row", "default", Matcher::default(), &[], true),
            announcer("reminded-row", "default", Matcher::default(), &[Event::Reminder], true),
            announcer("none", "default", Matcher::default(), &[], false),
            announcer("unfit", "default", thread_prefix("x"), &Event::ALL, true),
            announcer("foreign", "other", Matcher::default(), &Event::ALL, true),
        ],
        ..Rules::default()
    };
    let told = |of: &str, event| {
        let (of, envelope) = (tenant(of), envelope(r#""question":1"#));
        rules
            .announcers_for(&of, &envelope, event)
            .map(|a| a.name.to_string())
            .collect::<Vec<_>>()
            .join(" ")
    };
    for (event, expected) in [
        (Event::Created, "plain all row reminded-row"),
        (Event::Answered, "all row reminded-row"),
        (Event::TimedOut, "all row reminded-row"),
        (Event::Cancelled, "all row reminded-row"),
        (Event::Reminder, "all reminded-row"),
    ] {
        assert_eq!(told("default", event), expected, "{event}");
        assert_eq!(told("other", event), "foreign", "{event}");
        assert_eq!(told("third", event), "", "{event}");
    }
}
