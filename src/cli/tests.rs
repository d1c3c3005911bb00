//! The command line as people see it: the help texts are kept in a file, set `UPDATE_GOLDEN=1` to
//! write it anew.

use super::*;
use clap::CommandFactory as _;

/// The help of every command, one after the other.
fn help_of(command: &mut clap::Command, path: &str, out: &mut String) {
    let path = format!("{path} {}", command.get_name()).trim().to_owned();
    let help = command.clone().bin_name(&path).term_width(100).render_long_help().to_string();
    let lines = help.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
    out.push_str(&format!("$ {path} --help\n{lines}\n\n"));
    let visible = command.get_subcommands_mut().filter(|c| c.get_name() != "help");
    for sub in visible {
        help_of(sub, &path, out);
    }
}

#[test]
fn the_help_of_every_command_is_as_it_was() {
    let mut command = Arguments::command();
    command.build();
    let mut seen = String::new();
    help_of(&mut command, "", &mut seen);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/help.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, &seen).unwrap();
    }
    assert_eq!(seen, std::fs::read_to_string(path).unwrap_or_default());
}

fn parse(line: &str) -> Result<Arguments, clap::Error> {
    Arguments::try_parse_from(line.split(' '))
}

#[test]
fn the_daemon_may_be_named_before_and_after_the_command() {
    for line in [
        "answerback waits --url http://h:1 list",
        "answerback waits list --url http://h:1 --key k --json --state open --tag a=b --all",
        "answerback waits answer q --answer true --thread t --generation 2 --by me",
        "answerback waits answer q --answer -1",
        "answerback waits answer q --answer -1.5e3 --by me",
        "answerback waits answer q --answer=-1",
        "answerback publish - --url http://h:1",
        "answerback announcements retry 7",
        "answerback announcements retry --announcer finance",
        "answerback deliveries list --route pull",
        "answerback check --connect --config a.toml",
        "answerback demo --auto",
    ] {
        assert!(parse(line).is_ok(), "{line}: {:?}", parse(line).err().map(|e| e.to_string()));
    }
}

#[test]
fn a_wrong_command_line_ends_with_status_two() {
    for line in [
        "answerback",
        "answerback nonsense",
        "answerback waits",
        "answerback waits get",
        "answerback waits answer q",
        "answerback waits list --state opened",
        "answerback waits list --limit 0",
        "answerback waits list --limit 5 --all",
        "answerback waits get q --generation 0",
        "answerback waits list --tag a",
        "answerback announcements retry",
        "answerback announcements retry 7 --announcer finance",
        "answerback publish",
    ] {
        let error = parse(line).err().unwrap_or_else(|| panic!("{line}"));
        assert_eq!(error.exit_code(), 2, "{line}");
    }
}

#[test]
fn the_definitions_are_consistent() {
    Arguments::command().debug_assert();
}
