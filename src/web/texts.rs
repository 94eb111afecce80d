//! Tests of what the compiler does not check: that each text exists in both languages, that the texts of the two languages match, and that
//! addresses begin with the root of the server.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Names that are the same in every language.
const NAMES: [&str; 6] = ["bloom-runtime", "API", "OpenAPI", "JSON", "Membridge", "membridge"];
/// Elements that contain commands, keys of the keyboard, or names of the API.
const VERBATIM: [&str; 3] = ["code", "pre", "kbd"];
/// Attributes whose values people read.
const READ: [&str; 5] = ["aria-label", "title", "data-name", "placeholder", "alt"];

fn files() -> Vec<(PathBuf, String)> {
    let (mut found, mut open) = (Vec::new(), vec![Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()]);
    while let Some(dir) = open.pop() {
        for path in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            match path.extension().and_then(|ending| ending.to_str()) {
                None if path.is_dir() => open.push(path),
                Some("html" | "rs" | "js") if !path.ends_with("texts.rs") => found.push((path.clone(), fs::read_to_string(&path).unwrap())),
                _ => {}
            }
        }
    }
    found
}

fn is_cyrillic(letter: char) -> bool {
    ('\u{400}'..='\u{52f}').contains(&letter)
}

/// Whether the text needs a translation. Attributes that a macro writes are not text.
fn is_text(text: &str) -> bool {
    let has_letters = |word: &&str| word.chars().any(char::is_alphabetic) && !word.contains('"');
    text.split_whitespace().filter(has_letters).any(|word| !NAMES.contains(&word))
}

/// The untranslated texts of a template: the parts between its tags and comments, and the attributes that people read.
fn texts_of(template: &str) -> Vec<String> {
    let (mut found, mut text, mut rest, mut verbatim) = (Vec::new(), String::new(), template, 0_usize);
    let code_end = |rest: &str| ["{%", "{{", "{#"].iter().position(|sign| rest.starts_with(sign)).map(|at| ["%}", "}}", "#}"][at]);
    while let Some(letter) = rest.chars().next() {
        if let Some(end) = code_end(rest) {
            let (code, after) = rest.split_at(rest.find(end).expect("code ends") + end.len());
            found.extend(literals(code));
            found.push(std::mem::take(&mut text));
            rest = after;
        } else if letter == '<' {
            found.push(std::mem::take(&mut text));
            // A tag may contain template code.
            let mut tag = String::new();
            while !rest.starts_with('>') {
                match code_end(rest) {
                    Some(end) => {
                        let (code, after) = rest.split_at(rest.find(end).expect("code ends") + end.len());
                        found.extend(literals(code));
                        rest = after;
                    }
                    None => {
                        let first = rest.chars().next().expect("a tag ends");
                        tag.push(first);
                        rest = &rest[first.len_utf8()..];
                    }
                }
            }
            rest = &rest[1..];
            for attribute in READ {
                found.extend(tag.split(&format!(" {attribute}=\"")).skip(1).filter_map(|value| value.split('"').next()).map(str::to_owned));
            }
            let name = tag.trim_start_matches(['<', '/']).split(' ').next().unwrap_or_default();
            if VERBATIM.contains(&name) {
                verbatim = if tag.starts_with("</") { verbatim - 1 } else { verbatim + 1 };
            }
        } else {
            if verbatim == 0 {
                text.push(letter);
            }
            rest = &rest[letter.len_utf8()..];
        }
    }
    found.push(text);
    found.into_iter().map(|text| text.trim().to_owned()).filter(|text| is_text(text)).collect()
}

/// The sentences in a template's code that are not arguments of `t`.
fn literals(code: &str) -> Vec<String> {
    let without_pairs = pairs(code)
        .into_iter()
        .flat_map(|(english, ukrainian)| [english, ukrainian])
        .fold(code.to_owned(), |code, text| code.replace(&text, ""));
    let strings = without_pairs.split('"').skip(1).step_by(2).map(str::to_owned);
    strings.filter(|text| text.contains(' ')).collect()
}

/// The string literal at the beginning of the text, and the text after it.
fn literal(text: &str) -> Option<(String, &str)> {
    let text = text.trim_start();
    let text = text.strip_prefix("format!(").unwrap_or(text);
    let quote = text.chars().next().filter(|quote| ['"', '`'].contains(quote))?;
    let (mut said, mut letters) = (String::new(), text[1..].char_indices());
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => said.extend(letters.next().map(|(_, letter)| letter).filter(|letter| *letter != 'u')),
            letter if letter == quote => {
                let words: Vec<_> = said.split_whitespace().collect();
                return Some((words.join(" "), text[2 + at..].trim_start_matches(')')));
            }
            letter => said.push(letter),
        }
    }
    None
}

/// The text without its placeholders for values.
fn without_values(text: &str) -> String {
    let parts: Vec<_> = text.split(['{', '}']).step_by(2).collect();
    parts.concat()
}

/// The texts of both languages in each `t("…", "…")`, and in each error that a page creates.
fn pairs(text: &str) -> Vec<(String, String)> {
    let starts =
        text.match_indices("t(").filter(|(at, _)| !text[..*at].ends_with(|before: char| before.is_alphanumeric() || before == '_'));
    let mut after: Vec<&str> = starts.map(|(at, _)| &text[at + 2..]).collect();
    after.extend(text.match_indices("Refused::internal(").map(|(at, start)| &text[at + start.len()..]));
    after.extend(
        text.match_indices("Refused::new(").filter_map(|(at, start)| text[at + start.len()..].split_once(',')).map(|(_, rest)| rest),
    );
    let both = |rest: &str| {
        let (english, rest) = literal(rest)?;
        let (ukrainian, _) = literal(rest.trim_start().strip_prefix(',')?)?;
        Some((english, ukrainian))
    };
    after.into_iter().filter_map(both).collect()
}

#[test]
fn no_template_has_a_text_in_one_language() {
    let templates: Vec<_> = files().into_iter().filter(|(path, _)| path.extension().is_some_and(|ending| ending == "html")).collect();
    assert!(templates.len() > 20);
    let mut alone = Vec::new();
    for (path, template) in &templates {
        let name = path.file_name().unwrap().to_string_lossy();
        alone.extend(texts_of(template).iter().map(|text| format!("{name}: write {{{{ v.t(\"{text}\", \"…\") }}}} with its translation")));
    }
    assert!(alone.is_empty(), "{}", alone.join("\n"));
}

#[test]
fn each_text_has_a_translation_and_the_same_everywhere() {
    let (mut known, mut wrong) = (BTreeMap::<String, String>::new(), Vec::new());
    for (path, text) in files() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        for (english, ukrainian) in pairs(&text) {
            // Codes and symbols need no translation.
            if ["en", "English", ""].contains(&english.as_str()) || !without_values(&english).contains(char::is_alphabetic) {
                continue;
            }
            let end = |text: &str| text.chars().next_back().filter(|end| ".,:;?!…".contains(*end));
            let is_translated = ukrainian.chars().any(is_cyrillic) && !english.chars().any(is_cyrillic);
            // These letters belong to another language, and the straight apostrophe is not used in Ukrainian texts.
            let is_clean = !ukrainian.chars().any(|letter| "ыэъёЫЭЪЁ'\"".contains(letter));
            if !is_translated || !is_clean || end(&english) != end(&ukrainian) {
                wrong.push(format!("{name}: “{english}” and “{ukrainian}”"));
            }
            if let Some(before) = known.insert(english.clone(), ukrainian.clone())
                && before != ukrainian
            {
                wrong.push(format!("{name}: “{english}” is “{before}” elsewhere and “{ukrainian}” here"));
            }
        }
    }
    assert!(known.len() > 300, "{} texts", known.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn addresses_of_this_server_begin_with_its_root() {
    let mut wrong = Vec::new();
    for (path, text) in files() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let starts = if name.ends_with(".js") { vec!["(\"", "(`"] } else { vec![" href=", " action=", " src=", " data-copy-from="] };
        for start in starts {
            // Within templates, an address may also be relative to the page. In code, the quotes are escaped.
            let after = text.split(start).skip(1).map(|after| after.trim_start_matches(['\\', '"']));
            let others = after.filter(|after| after.starts_with('/') || after.starts_with("{{") && !after.starts_with("{{ v.at.root }}"));
            wrong.extend(others.map(|after| format!("{name}: {start}{}", after.lines().next().unwrap_or_default())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_scan_sees_what_is_missing() {
    let found = |template| texts_of(template).join("|");
    assert_eq!(found(r#"<p title="Why not">{{ v.t("A", "А") }} of <code>ls -l</code>{% let x = "no one" %}</p>"#), "Why not|of|no one");
    assert_eq!(found("{# A comment. #}{% if x %} aria-invalid=\"true\"{% endif %}"), "");
    assert_eq!(found(r#"<p{% if a > b %} hidden{% endif %}>JSON 5 {{ v.t("A text", "Текст") }}</p>"#), "");
    let both = |text| pairs(text).into_iter().map(|(english, ukrainian)| format!("{english}|{ukrainian}")).collect::<Vec<_>>();
    assert_eq!(
        both("lang.t(\n  \"a \\\n   b\", \"в\") format(\"x\", \"y\") v.t(format!(\"{x}\"), format!(\"{x} г\"))"),
        ["a b|в", "{x}|{x} г"]
    );
    assert_eq!(both("Refused::new(404, \"No\", \"Ні\")"), ["No|Ні"]);
}
