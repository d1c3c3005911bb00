//! Properties that hold of any document, checked against an independent reading of it.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A value as a test means it; [`Meant::write`] gives one of its many spellings.
#[derive(Debug, Clone)]
enum Meant {
    Null,
    Bool(bool),
    /// So many tenths.
    Number(i64),
    Text(String),
    Array(Vec<Meant>),
    /// A key may stand twice: the last counts.
    Object(Vec<(String, Meant)>),
}

impl Meant {
    /// The same text for equal values, and only for them.
    fn canonical(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(b) => b.to_string(),
            Self::Number(tenths) => format!("{tenths}/10"),
            Self::Text(text) => format!("{text:?}"),
            Self::Array(items) => {
                let items: Vec<_> = items.iter().map(Self::canonical).collect();
                format!("[{}]", items.join(","))
            }
            Self::Object(members) => {
                let last: BTreeMap<_, _> =
                    members.iter().map(|(k, v)| (k, v.canonical())).collect();
                format!("{last:?}")
            }
        }
    }

    fn write(&self, how: &mut Spelling) -> String {
        let before = how.space();
        let after = how.space();
        let value = match self {
            Self::Null => "null".to_owned(),
            Self::Bool(b) => b.to_string(),
            Self::Number(tenths) => how.number(*tenths),
            Self::Text(text) => how.string(text),
            Self::Array(items) => {
                let items: Vec<_> = items.iter().map(|item| item.write(how)).collect();
                format!("[{}{}]", how.space(), items.join(","))
            }
            Self::Object(members) => {
                let members: Vec<_> = how
                    .order(members)
                    .iter()
                    .map(|(k, v)| {
                        format!("{}{}{}:{}", how.space(), how.string(k), how.space(), v.write(how))
                    })
                    .collect();
                format!("{{{}{}}}", how.space(), members.join(","))
            }
        };
        format!("{before}{value}{after}")
    }
}

/// Chooses among spellings: a linear congruential generator, so that the choices never run out.
struct Spelling(u64);

impl Spelling {
    fn choose(&mut self, ways: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        usize::try_from(self.0 >> 33).unwrap() % ways
    }

    fn space(&mut self) -> &'static str {
        ["", "", "", " ", "\n\t", "\r "][self.choose(6)]
    }

    fn string(&mut self, text: &str) -> String {
        let mut out = String::from("\"");
        for c in text.chars() {
            match c {
                c if c < ' ' || self.choose(4) == 0 => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04X}"));
                    }
                }
                '"' | '\\' => out.extend(['\\', c]),
                c => out.push(c),
            }
        }
        out.push('"');
        out
    }

    fn number(&mut self, tenths: i64) -> String {
        let sign = if tenths < 0 { "-" } else { "" };
        let n = tenths.unsigned_abs();
        match self.choose(5) {
            0 if n.is_multiple_of(10) => format!("{sign}{}", n / 10),
            0 | 1 => format!("{sign}{}.{}", n / 10, n % 10),
            2 => format!("{sign}{}.{}000", n / 10, n % 10),
            3 => format!("{sign}{n}e-1"),
            _ => format!("{sign}0.0000{n:020}E+{:03}", 23),
        }
    }

    /// Another order, but of equal keys the same one last.
    fn order(&mut self, members: &[(String, Meant)]) -> Vec<(String, Meant)> {
        let mut moved = members.to_vec();
        for i in (1..moved.len()).rev() {
            let j = self.choose(i + 1);
            if moved[j..=i].iter().filter(|(k, _)| *k == moved[i].0 || *k == moved[j].0).count()
                <= 2
                && moved[i].0 != moved[j].0
            {
                moved.swap(i, j);
            }
        }
        moved
    }
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof!["[ab]", "answer", "\\PC{0,3}", Just("\u{0}\"\\\n".to_owned())]
}

/// Values out of few, so that equal ones meet often.
fn meant() -> impl Strategy<Value = Meant> {
    let leaf = prop_oneof![
        Just(Meant::Null),
        any::<bool>().prop_map(Meant::Bool),
        prop_oneof![-12_i64..12, any::<i32>().prop_map(i64::from)].prop_map(Meant::Number),
        key().prop_map(Meant::Text),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Meant::Array),
            vec((key(), inner), 0..4).prop_map(Meant::Object),
        ]
    })
}

fn object() -> impl Strategy<Value = Meant> {
    vec((key(), meant()), 0..6).prop_map(Meant::Object)
}

proptest! {
    #[test]
    fn values_are_the_same_exactly_when_they_mean_the_same(
        a in meant(), b in meant(), one: u64, other: u64,
    ) {
        let spelt = [
            (&a, a.write(&mut Spelling(one))),
            (&a, a.write(&mut Spelling(other))),
            (&b, b.write(&mut Spelling(one))),
        ];
        // Sameness follows an equality of texts, so it is an equivalence.
        for (x, x_text) in &spelt {
            for (y, y_text) in &spelt {
                prop_assert_eq!(
                    same_value(&parse(x_text).unwrap(), &parse(y_text).unwrap()),
                    x.canonical() == y.canonical(),
                    "{} and {}", x_text, y_text
                );
            }
        }
    }

    #[test]
    fn members_and_parse_read_the_same(object in object(), how: u64) {
        let text = object.write(&mut Spelling(how));
        let Json::Object(parsed) = parse(&text).unwrap() else { panic!("an object") };
        let cut = members(&text).unwrap();
        prop_assert_eq!(cut.len(), parsed.len());
        for (member, (key, value)) in cut.iter().zip(&parsed) {
            prop_assert_eq!(&member.key, key);
            prop_assert_eq!(&parse(member.raw).unwrap(), value);
            prop_assert_eq!(member.raw.trim(), member.raw);
        }
        // What is written compactly is what was read.
        let written = Json::Object(parsed.clone()).to_string();
        prop_assert_eq!(parse(&written).unwrap(), Json::Object(parsed));
    }

    #[test]
    fn setting_a_member_changes_no_other(
        object in object(), set in key(), value in meant(), how: u64,
    ) {
        let text = object.write(&mut Spelling(how));
        let raw = value.write(&mut Spelling(!how));
        let changed = with_member(&text, &set, &raw).unwrap();
        let before = members(&text).unwrap();
        let after = members(&changed).unwrap();
        let at = before.iter().rposition(|m| m.key == *set).unwrap_or(before.len());
        prop_assert_eq!(after.len(), before.len().max(at + 1));
        for (i, member) in after.iter().enumerate() {
            if i == at {
                prop_assert_eq!(&*member.key, &*set);
                prop_assert_eq!(member.raw, raw.trim());
            } else {
                prop_assert_eq!(&member.key, &before[i].key);
                prop_assert_eq!(member.raw, before[i].raw);
            }
        }
        // Setting what stands there already changes nothing.
        prop_assert_eq!(with_member(&changed, &set, after[at].raw).unwrap(), changed.clone());
    }

    /// One wrong character more, less or instead: both readers and serde_json are of one mind.
    #[test]
    fn damaged_documents_are_judged_alike(
        object in object(), how: u64, at: prop::sample::Index, damage in 0_u8..3,
        junk in prop::sample::select(vec!['"', '\\', '{', '}', '[', ']', ',', ':', '0', '-', 'e', '.', 'u', '\n', '\u{1}', '\u{feff}', 'n']),
    ) {
        let mut chars: Vec<char> = object.write(&mut Spelling(how)).chars().collect();
        let i = at.index(chars.len());
        match damage {
            0 => { chars.remove(i); }
            1 => chars.insert(i, junk),
            _ => chars[i] = junk,
        }
        let text: String = chars.into_iter().collect();
        let parsed = parse(&text);
        let theirs = serde_json::from_str::<serde_json::Value>(&text);
        if !theirs.as_ref().is_err_and(|e| e.to_string().contains("out of range")) {
            prop_assert_eq!(parsed.is_ok(), theirs.is_ok(), "{}", &text);
        }
        let is_object = matches!(parsed, Ok(Json::Object(_)));
        prop_assert_eq!(members(&text).is_ok(), is_object, "{}", &text);
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in vec(any::<u8>(), 0..200)) {
        if let Ok(text) = JsonError::check_utf8(&bytes) {
            let _ = (parse(text), members(text), with_member(text, "a", "1"));
        }
    }
}
