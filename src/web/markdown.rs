//! Converts the Markdown of agents' answers to HTML. HTML in an answer is shown as text, and nothing is loaded from other sites: an image
//! becomes a link to it. Links lead only to web pages and mail addresses.

use pulldown_cmark::{Alignment, CodeBlockKind, Event, Options, Parser, Tag, TagEnd};
use url::Url;

use super::html::Html;

/// Longer texts are shown as plain text.
const MAX_CHARS: usize = 20_000;
/// So are texts whose HTML would be longer than this.
const MAX_HTML: usize = 80_000;
/// So are texts whose elements are nested more deeply than this.
const MAX_DEPTH: usize = 32;
const SCHEMES: [&str; 3] = ["http", "https", "mailto"];
const OPTIONS: Options = Options::ENABLE_TABLES.union(Options::ENABLE_STRIKETHROUGH).union(Options::ENABLE_TASKLISTS);

/// `None` if the text is too large, or nested too deeply.
pub(crate) fn to_html(text: &str) -> Option<Html> {
    if text.chars().nth(MAX_CHARS).is_some() {
        return None;
    }
    let mut page = Page::default();
    let mut depth = 0_usize;
    for event in Parser::new_ext(text, OPTIONS) {
        match &event {
            Event::Start(_) => depth += 1,
            Event::End(_) => depth = depth.saturating_sub(1),
            _ => {}
        }
        page.add(event);
        if depth > MAX_DEPTH || page.html.len() > MAX_HTML {
            return None;
        }
    }
    Some(page.html)
}

/// The words of a Markdown text in one line, without the markup.
pub(crate) fn to_line(text: &str) -> String {
    let mut line = String::new();
    for event in Parser::new_ext(text, OPTIONS) {
        match event {
            Event::Text(text) | Event::Code(text) | Event::Html(text) | Event::InlineHtml(text) => line.push_str(&text),
            // This markup may begin and end within a word, so it adds no space.
            Event::Start(Tag::Emphasis | Tag::Strong | Tag::Strikethrough | Tag::Link { .. } | Tag::Image { .. })
            | Event::End(TagEnd::Emphasis | TagEnd::Strong | TagEnd::Strikethrough | TagEnd::Link | TagEnd::Image) => {}
            _ => line.push(' '),
        }
    }
    line.split_whitespace().map(unmarked).collect::<Vec<_>>().join(" ")
}

/// A word without `**` that has no counterpart, for example because the text was cut. The `**` of a glob such as `src/**` stays.
fn unmarked(word: &str) -> &str {
    let ends = |letter: char| letter.is_alphanumeric() || ".,:;!?)".contains(letter);
    let word = word.strip_prefix("**").filter(|rest| rest.starts_with(char::is_alphanumeric)).unwrap_or(word);
    word.strip_suffix("**").filter(|rest| rest.ends_with(ends)).unwrap_or(word)
}

#[derive(Default)]
struct Page {
    html: Html,
    /// The levels of the enclosing headings, as they are written. On the page they start below the page's own headings, and no level is
    /// skipped.
    levels: Vec<u8>,
    /// The end tags of the open links and images; empty for an image within a link, and for a link whose target is refused, because these
    /// get no tag.
    ends: Vec<&'static str>,
    is_in_link: bool,
    is_in_head: bool,
    /// The alignments of the columns of the current table, and the column of the next cell.
    alignments: Vec<Alignment>,
    column: usize,
}

impl Page {
    fn add(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Code(text) => {
                self.html.tag("<code>");
                self.html.text(&text);
                self.html.tag("</code>");
            }
            Event::SoftBreak | Event::HardBreak => self.html.tag("<br>\n"),
            Event::Rule => self.html.tag("<hr>\n"),
            Event::TaskListMarker(is_done) => self.html.tag(if is_done { "☑ " } else { "☐ " }),
            Event::Text(text)
            | Event::Html(text)
            | Event::InlineHtml(text)
            | Event::InlineMath(text)
            | Event::DisplayMath(text)
            | Event::FootnoteReference(text) => self.html.text(&text),
        }
    }

    fn start(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Heading { level, .. } => {
                let level = level as u8;
                self.levels.retain(|above| *above < level);
                self.levels.push(level);
                self.html.tag(self.heading()[0]);
            }
            Tag::CodeBlock(kind) => {
                self.html.tag("<pre tabindex=\"0\">");
                if let CodeBlockKind::Fenced(language) = kind
                    && let Some(language) = language.split_whitespace().next()
                {
                    self.html.tag("<span class=\"language\">");
                    self.html.text(language);
                    self.html.tag("</span>");
                }
                self.html.tag("<code>");
            }
            Tag::List(Some(first)) => {
                self.html.tag("<ol start=\"");
                self.html.text(&first.to_string());
                self.html.tag("\">\n");
            }
            Tag::Table(alignments) => {
                self.alignments = alignments;
                self.html.tag("<div class=\"scroll\" tabindex=\"0\"><table>\n");
            }
            Tag::TableHead => {
                (self.is_in_head, self.column) = (true, 0);
                self.html.tag("<thead><tr>");
            }
            Tag::TableRow => {
                self.column = 0;
                self.html.tag("<tr>");
            }
            Tag::TableCell => {
                self.html.tag(match (self.alignments.get(self.column), self.is_in_head) {
                    (Some(Alignment::Right), true) => "<th class=\"right\">",
                    (Some(Alignment::Right), false) => "<td class=\"right\">",
                    (Some(Alignment::Center), true) => "<th class=\"center\">",
                    (Some(Alignment::Center), false) => "<td class=\"center\">",
                    (_, true) => "<th>",
                    (_, false) => "<td>",
                });
                self.column += 1;
            }
            Tag::Link { dest_url, .. } => self.link(&dest_url),
            Tag::Image { dest_url, .. } => self.link(&dest_url),
            Tag::HtmlBlock => self.html.tag("<p class=\"verbatim\">"),
            other => self.html.tag(match other {
                Tag::Paragraph => "<p>",
                Tag::BlockQuote(_) => "<blockquote>\n",
                Tag::List(_) => "<ul>\n",
                Tag::Item => "<li>",
                Tag::Emphasis => "<em>",
                Tag::Strong => "<strong>",
                Tag::Strikethrough => "<del>",
                _ => "",
            }),
        }
    }

    fn end(&mut self, tag: TagEnd) {
        let end = match tag {
            TagEnd::Heading(_) => self.heading()[1],
            TagEnd::TableHead => {
                self.is_in_head = false;
                "</tr></thead><tbody>\n"
            }
            TagEnd::TableCell => {
                if self.is_in_head {
                    "</th>"
                } else {
                    "</td>"
                }
            }
            TagEnd::Link | TagEnd::Image => {
                let end = self.ends.pop().unwrap_or_default();
                self.is_in_link &= end.is_empty();
                end
            }
            TagEnd::Paragraph | TagEnd::HtmlBlock => "</p>\n",
            TagEnd::BlockQuote(_) => "</blockquote>\n",
            TagEnd::CodeBlock => "</code></pre>\n",
            TagEnd::List(true) => "</ol>\n",
            TagEnd::List(false) => "</ul>\n",
            TagEnd::Item => "</li>\n",
            TagEnd::Table => "</tbody></table></div>\n",
            TagEnd::TableRow => "</tr>\n",
            TagEnd::Emphasis => "</em>",
            TagEnd::Strong => "</strong>",
            TagEnd::Strikethrough => "</del>",
            _ => "",
        };
        self.html.tag(end);
    }

    /// The first level is `h3`, because this part of the page itself has an `h2`.
    fn heading(&self) -> [&'static str; 2] {
        match self.levels.len() {
            0 | 1 => ["<h3>", "</h3>\n"],
            2 => ["<h4>", "</h4>\n"],
            3 => ["<h5>", "</h5>\n"],
            _ => ["<h6>", "</h6>\n"],
        }
    }

    fn link(&mut self, target: &str) {
        // The parsed URL is written, so that the browser opens exactly what was checked.
        match Url::parse(target).ok().filter(|url| SCHEMES.contains(&url.scheme()) && !self.is_in_link) {
            Some(url) => {
                self.html.tag("<a rel=\"noopener nofollow\" href=\"");
                self.html.text(url.as_str());
                self.html.tag("\">");
                self.ends.push("</a>");
                self.is_in_link = true;
            }
            None => self.ends.push(""),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(markdown: &str, expected: &str) {
        assert_eq!(to_html(markdown).map(|html| html.to_string().replace('\n', "")).as_deref(), Some(expected), "{markdown}");
    }

    #[test]
    fn markdown_becomes_elements() {
        check("a **b** *c* ~~d~~ `e<f`\ng", "<p>a <strong>b</strong> <em>c</em> <del>d</del> <code>e&#60;f</code><br>g</p>");
        check("- [x] a\n- [ ] b", "<ul><li>☑ a</li><li>☐ b</li></ul>");
        check("3. a\n4. b", "<ol start=\"3\"><li>a</li><li>b</li></ol>");
        check("```rs\na\n```", "<pre tabindex=\"0\"><span class=\"language\">rs</span><code>a</code></pre>");
        let table = "<div class=\"scroll\" tabindex=\"0\"><table><thead><tr><th>a</th></tr></thead><tbody><tr><td>b</td></tr></tbody></table></div>";
        check("|a|\n|-|\n|b|", table);
        let row = "<tr><td class=\"center\">b</td><td>c</td><td class=\"right\">7</td></tr>";
        let table = "<div class=\"scroll\" tabindex=\"0\"><table><thead><tr><th class=\"center\">a</th><th>b</th><th class=\"right\">n</th></tr></thead><tbody>";
        check("|a|b|n|\n|:-:|-|-:|\n|b|c|7|\n|b|c|7|", &format!("{table}{row}{row}</tbody></table></div>"));
        // No level is skipped, whatever level the text begins with.
        check("# a\n### b\n## c\n# d", "<h3>a</h3><h4>b</h4><h4>c</h4><h3>d</h3>");
    }

    #[test]
    fn nothing_becomes_an_element_that_loads_or_runs() {
        check("<b onclick=x>a</b>", "<p>&#60;b onclick=x&#62;a&#60;/b&#62;</p>");
        check("<script>\nalert(1)\n</script>", "<p class=\"verbatim\">&#60;script&#62;alert(1)&#60;/script&#62;</p>");
        check(
            "![an *image*](https://x.example/a.png)",
            "<p><a rel=\"noopener nofollow\" href=\"https://x.example/a.png\">an <em>image</em></a></p>",
        );
        check(
            "[![i](https://x.example/i)](https://y.example/) [z](mailto:a@b.example)",
            "<p><a rel=\"noopener nofollow\" href=\"https://y.example/\">i</a> <a rel=\"noopener nofollow\" href=\"mailto:a@b.example\">z</a></p>",
        );
        for target in
            ["javascript:alert(1)", "JaVaScRiPt:alert(1)", "data:text/html,x", "/tasks", "//x.example", "&#106;avascript:x", "vbscript:x"]
        {
            check(&format!("[a]({target}) ![b]({target})"), "<p>a b</p>");
        }
        check("[a](https://x.example/\"onclick=x)", "<p><a rel=\"noopener nofollow\" href=\"https://x.example/%22onclick=x\">a</a></p>");
    }

    #[test]
    fn a_line_has_the_words_without_the_signs() {
        let text = "# The **report**\n\nIt is `fine`, see [the *page*](https://x.example/).\n\n- one\n- [x] two\n\n|a|b|\n|-|-|\n|c|d|\n\n```rs\nlet x;\n```";
        assert_eq!(to_line(text), "The report It is fine, see the page. one two a b c d let x;");
        assert_eq!(
            (to_line("un*believ*able"), to_line("---"), to_line("<b>a</b>")),
            ("unbelievable".into(), String::new(), "<b>a</b>".into())
        );
        assert_eq!(to_line("I looked at **it, and \\*\\*more:\\*\\*"), "I looked at it, and more:");
        assert_eq!(["src/**", "**/*.rs", "**"].map(unmarked), ["src/**", "**/*.rs", "**"]);
    }

    #[test]
    fn what_is_too_large_or_too_deep_is_left_as_it_is() {
        assert!(to_html(&"a".repeat(MAX_CHARS)).is_some());
        assert_eq!(to_html(&"a".repeat(MAX_CHARS + 1)), None);
        assert_eq!(to_html(&"<".repeat(MAX_CHARS)), None);
        assert_eq!(to_html(&">".repeat(2 * MAX_DEPTH)), None);
    }
}
