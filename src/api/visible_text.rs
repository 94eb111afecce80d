//! Makes visible what a text from elsewhere would hide from its reader.

use std::borrow::Cow;
use std::fmt::Write as _;

/// More blank characters or line breaks than this in a row are counted instead of shown: what follows them would be out of sight.
const BLANKS: usize = 60;
const LINE_BREAKS: usize = 4;

/// Escapes control characters, and those that are invisible or change the direction of text, as JSON does. Line breaks and tabs stay. So a
/// terminal is not controlled, and a command reads as it is executed.
pub fn escaped(text: &str) -> Cow<'_, str> {
    escaped_if(text, is_hidden)
}

fn escaped_if(text: &str, is_hidden: fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\r' if chars.peek() == Some(&'\n') => {}
            c if is_hidden(c) => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                let _ = write!(shown, "\\u{unit:04x}");
            }),
            c => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// A text that a person decides about: [`escaped`], also characters that are invisible but usual in some scripts and in emoji, and with long
/// runs of blank characters counted: `a⟨6000 blank characters⟩b`.
pub fn compact(text: &str) -> String {
    let text = escaped_if(text, |c| is_hidden(c) || matches!(c, '\u{200c}' | '\u{200d}' | '\u{fe00}'..='\u{fe0f}'));
    let mut shown = String::with_capacity(text.len());
    let mut rest = &*text;
    while let Some(start) = rest.find(char::is_whitespace) {
        let (before, from) = rest.split_at(start);
        let end = from.find(|c: char| !c.is_whitespace()).unwrap_or(from.len());
        let (blanks, after) = from.split_at(end);
        shown.push_str(before);
        let count = blanks.chars().count();
        if count > BLANKS || blanks.matches('\n').count() > LINE_BREAKS {
            let _ = write!(shown, "⟨{count} blank characters⟩");
        } else {
            shown.push_str(blanks);
        }
        rest = after;
    }
    shown + rest
}

/// Whether a character is a control character, changes the direction of text, or is invisible, so that two names look alike. Joiners and
/// variation selectors are not among them: words of some scripts and emoji need them. Source: `Default_Ignorable_Code_Point` of Unicode, and
/// letters that are drawn as nothing.
pub fn is_hidden(c: char) -> bool {
    (c.is_control() && c != '\n' && c != '\t')
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{61c}')
        || matches!(c, '\u{ad}' | '\u{34f}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{200b}' | '\u{2028}' | '\u{2029}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff0}'..='\u{fffb}' | '\u{1107f}' | '\u{13430}'..='\u{13440}')
        || matches!(c, '\u{115f}' | '\u{1160}' | '\u{2800}' | '\u{3164}' | '\u{ffa0}' | '\u{16fe4}')
        || matches!(c, '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_or_hides_is_escaped() {
        for (text, shown) in [
            ("a\tb\nc", "a\tb\nc"),
            ("a\r\nb", "a\nb"),
            ("\x1b]8;;x\x07", "\\u001b]8;;x\\u0007"),
            ("ls \u{2067}\u{2066}; touch x\u{2069}", "ls \\u2067\\u2066; touch x\\u2069"),
            ("a\u{202e}b\u{200b}c\u{3164}", "a\\u202eb\\u200bc\\u3164"),
            ("\u{e0041}", "\\udb40\\udc41"),
            ("Ґанок, שלום, 👩‍💻", "Ґанок, שלום, 👩‍💻"),
        ] {
            assert_eq!(escaped(text), shown);
        }
    }

    #[test]
    fn many_blanks_are_counted() {
        let far = format!("echo a{}; touch b", " ".repeat(6_000));
        assert_eq!(compact(&far), "echo a⟨6000 blank characters⟩; touch b");
        let below = format!("a{}b\u{202e}", "\n \u{3000}".repeat(21));
        assert_eq!(compact(&below), "a⟨63 blank characters⟩b\\u202e");
        assert_eq!(compact(&format!("git status{}rm x", "\n".repeat(5))), "git status⟨5 blank characters⟩rm x");
        assert_eq!(compact("./dep\u{200c}loy.sh \u{200d}\u{fe0f}\u{206a}"), "./dep\\u200cloy.sh \\u200d\\ufe0f\\u206a");
        let code = format!("if x:\n{}y\n\n\nz ", " ".repeat(40));
        assert_eq!(compact(&code), code);
    }
}
