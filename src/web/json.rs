//! JSON as elements that can be folded. The elements need no words, so they are the same in every language.

use serde_json::Value;

use super::html::Html;

/// Values below this depth, and values after this many objects and lists, are shown in one line.
const MAX_DEPTH: usize = 8;
const MAX_FOLDS: usize = 300;
/// Values below this depth are folded at first.
const OPEN_DEPTH: usize = 2;

/// An object or a list as elements that can be folded; `None` if the value is neither.
pub(crate) fn folds(value: &Value) -> Option<Html> {
    let mut tree = Tree { html: Html::default(), folds: 0 };
    (value.is_object() || value.is_array()).then(|| {
        tree.html.tag("<div class=\"json\">");
        tree.add(None, value, 0);
        tree.html.tag("</div>");
        tree.html
    })
}

/// As [`folds`], for a text; `None` if it is not the JSON of an object or a list.
pub(crate) fn folds_of(text: &str) -> Option<Html> {
    serde_json::from_str(text).ok().and_then(|value: Value| folds(&value))
}

struct Tree {
    html: Html,
    folds: usize,
}

impl Tree {
    fn add(&mut self, name: Option<&str>, value: &Value, depth: usize) {
        let (count, [start, end]) = match value {
            Value::Object(members) => (members.len(), ["{ ", " }"]),
            Value::Array(items) => (items.len(), ["[ ", " ]"]),
            _ => (0, ["", ""]),
        };
        if count == 0 || depth >= MAX_DEPTH || self.folds >= MAX_FOLDS {
            self.name(name);
            self.html.tag("<span class=\"value\">");
            self.html.text(&value.to_string());
            return self.html.tag("</span>");
        }
        self.folds += 1;
        self.html.tag(if depth < OPEN_DEPTH { "<details open><summary>" } else { "<details><summary>" });
        self.name(name);
        self.html.tag(start);
        self.html.text(&count.to_string());
        self.html.tag(end);
        self.html.tag("</summary><ul>\n");
        match value {
            Value::Object(members) => members.iter().for_each(|(name, value)| self.item(Some(name), value, depth + 1)),
            Value::Array(items) => items.iter().for_each(|value| self.item(None, value, depth + 1)),
            _ => {}
        }
        self.html.tag("</ul></details>");
    }

    fn item(&mut self, name: Option<&str>, value: &Value, depth: usize) {
        self.html.tag("<li>");
        self.add(name, value, depth);
        self.html.tag("</li>\n");
    }

    fn name(&mut self, name: Option<&str>) {
        if let Some(name) = name {
            self.html.tag("<span class=\"name\">");
            self.html.text(name);
            self.html.tag("</span>: ");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_and_lists_can_be_folded() {
        let html = folds_of(r#"{"a": [1, {"<": {}}], "b": "\"x"}"#).unwrap().to_string().replace('\n', "");
        let expected = "<div class=\"json\"><details open><summary>{ 2 }</summary><ul>\
            <li><details open><summary><span class=\"name\">a</span>: [ 2 ]</summary><ul><li><span class=\"value\">1</span></li>\
            <li><details><summary>{ 1 }</summary><ul><li><span class=\"name\">&#60;</span>: <span class=\"value\">{}</span></li></ul></details></li>\
            </ul></details></li><li><span class=\"name\">b</span>: <span class=\"value\">&#34;\\&#34;x&#34;</span></li></ul></details></div>";
        assert_eq!(html, expected);
        assert_eq!((folds_of("7"), folds_of("{"), folds_of("\"{}\"")), (None, None, None));
    }

    #[test]
    fn depth_and_number_have_limits_and_nothing_is_lost() {
        let deep = format!("{}7{}", "[".repeat(100), "]".repeat(100));
        let html = folds_of(&deep).unwrap().to_string();
        assert_eq!((html.matches("<details").count(), html.contains("[[7]]")), (MAX_DEPTH, true));
        let wide = format!("[{}]", vec!["[7]"; 1_000].join(","));
        let html = folds_of(&wide).unwrap().to_string();
        assert_eq!((html.matches("<details").count(), html.matches('7').count()), (MAX_FOLDS, 1_000));
    }
}
