//! Lays out parsed Markdown as rows of the screen.

use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};

use super::super::row::{Canvas, Hue, Look, Row};
use super::table::TextTable;

/// Maximum indentation: more deeply nested lists and quotes are not indented further.
const DEEPEST_INDENT: usize = 8;
/// Minimum number of columns for text beside its indentation.
const NARROWEST_TEXT: usize = 10;

/// Lays out `source` as rows. With `has_labels`, a code block starts with its language.
pub(super) fn rows(source: &str, canvas: Canvas, has_labels: bool) -> Vec<Row> {
    let options =
        Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
    let mut layout = MarkdownLayout::new(canvas, has_labels);
    Parser::new_ext(source, options).for_each(|event| layout.handle(event));
    layout.flush();
    layout.rows
}

/// Text before the rows of a list item or a quote.
#[derive(Debug)]
struct Margin {
    /// Text before the first row, which takes it.
    first: Option<String>,
    later: String,
    look: Look,
}

/// State of the layout.
struct MarkdownLayout {
    canvas: Canvas,
    has_labels: bool,
    rows: Vec<Row>,
    margins: Vec<Margin>,
    /// The number of the next item of each open list; `None` without numbers.
    lists: Vec<Option<u64>>,
    /// Looks of the text, the current one last.
    looks: Vec<Look>,
    /// Text whose paragraph, item or cell has not ended.
    text: Row,
    /// The open links and images: their targets, and the start of their texts.
    links: Vec<(String, usize)>,
    code: Option<String>,
    table: Option<TextTable>,
    /// True if a blank row must precede the next row.
    is_apart: bool,
}

impl MarkdownLayout {
    fn new(canvas: Canvas, has_labels: bool) -> Self {
        Self {
            canvas,
            has_labels,
            rows: Vec::new(),
            margins: Vec::new(),
            lists: Vec::new(),
            looks: vec![Look::PLAIN],
            text: Row::default(),
            links: Vec::new(),
            code: None,
            table: None,
            is_apart: false,
        }
    }

    fn handle(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.begin(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) => match &mut self.code {
                Some(code) => *code += &text,
                None => self.push(&text),
            },
            Event::Code(code) => self.push_code(&code),
            // Models end lines where they mean it.
            Event::SoftBreak | Event::HardBreak => self.push("\n"),
            Event::InlineHtml(html) if html.starts_with("<br") => self.push("\n"),
            // A terminal shows no markup; what the model wrote is better than nothing.
            Event::Html(text) | Event::InlineHtml(text) => self.push(&text),
            Event::Rule => self.rule(),
            Event::TaskListMarker(is_done) => self.push(if is_done { "☑ " } else { "☐ " }),
            _ => {}
        }
    }

    fn begin(&mut self, tag: Tag<'_>) {
        let look = self.look();
        match tag {
            Tag::Paragraph | Tag::HtmlBlock => self.flush(),
            Tag::Heading { level, .. } => {
                self.flush();
                let underline = level == HeadingLevel::H1;
                self.looks.push(Look { bold: true, underline, ..look });
            }
            Tag::BlockQuote(_) => {
                self.flush();
                // The bar goes on beside every row, those of a wrapped line included.
                self.add_margin(Some("│ ".into()), "│ ", Look::DIM);
            }
            Tag::CodeBlock(kind) => self.begin_code(&kind),
            Tag::List(first) => {
                self.flush();
                self.lists.push(first);
            }
            Tag::Item => self.begin_item(),
            Tag::Table(alignments) => {
                self.flush();
                self.table = Some(TextTable::new(alignments));
            }
            Tag::TableHead | Tag::TableRow => {
                self.looks.push(Look { bold: matches!(tag, Tag::TableHead), ..look });
                self.table.iter_mut().for_each(TextTable::begin_row);
            }
            Tag::Emphasis => self.looks.push(Look { italic: true, ..look }),
            Tag::Strong => self.looks.push(Look { bold: true, ..look }),
            Tag::Strikethrough => self.looks.push(Look { struck: true, ..look }),
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => {
                self.looks.push(Look { underline: true, ..look });
                // The place tells, at the end, whether the text is the address itself.
                self.links.push((dest_url.into_string(), self.text.text().len()));
            }
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Paragraph | TagEnd::HtmlBlock => {
                self.flush();
                self.is_apart = true;
            }
            TagEnd::Heading(_) => {
                self.flush();
                self.looks.pop();
                self.is_apart = true;
            }
            TagEnd::BlockQuote(_) => {
                self.flush();
                self.margins.pop();
                self.is_apart = true;
            }
            TagEnd::CodeBlock => self.end_code(),
            TagEnd::List(_) => {
                self.flush();
                self.lists.pop();
                // A list inside an item stays close to the item's next line.
                self.is_apart |= self.lists.is_empty();
            }
            TagEnd::Item => self.end_item(),
            TagEnd::Table => self.end_table(),
            TagEnd::TableHead | TagEnd::TableRow => {
                self.looks.pop();
            }
            TagEnd::TableCell => {
                let cell = std::mem::take(&mut self.text);
                self.table.iter_mut().for_each(|table| table.push_cell(cell.clone()));
            }
            TagEnd::Emphasis | TagEnd::Strong | TagEnd::Strikethrough => {
                self.looks.pop();
            }
            TagEnd::Link | TagEnd::Image => self.end_link(),
            _ => {}
        }
    }

    fn look(&self) -> Look {
        self.looks.last().copied().unwrap_or_default()
    }

    fn push(&mut self, text: &str) {
        let look = self.look();
        self.text.push(look, text);
    }

    fn push_code(&mut self, code: &str) {
        let look = Look { hue: Hue::Code, ..self.look() };
        // Without colours it would look like any other word.
        let mark = if self.canvas.colour { "" } else { "`" };
        self.text.push(look, &format!("{mark}{code}{mark}"));
    }

    /// Ends a link. Always shows the target, since the text may be deceptive.
    fn end_link(&mut self) {
        self.looks.pop();
        let Some((url, from)) = self.links.pop() else { return };
        let text = self.text.text();
        if !url.is_empty() && !url.ends_with(&text[from.min(text.len())..]) {
            let look = Look { dim: true, ..self.look() };
            self.text.push(look, &format!(" ({url})"));
        }
    }

    fn rule(&mut self) {
        self.flush();
        let columns = self.columns();
        self.emit(Row::of(Look::DIM, &"─".repeat(columns)));
        self.is_apart = true;
    }

    fn begin_item(&mut self) {
        self.flush();
        self.set_apart();
        let depth = self.lists.len();
        let mark = match self.lists.last_mut() {
            Some(Some(number)) => {
                let mark = format!("{number}. ");
                *number = number.saturating_add(1);
                mark
            }
            _ if depth % 2 == 1 => "• ".to_owned(),
            _ => "◦ ".to_owned(),
        };
        let later = " ".repeat(mark.chars().count());
        self.add_margin(Some(mark), &later, Look::PLAIN);
    }

    fn end_item(&mut self) {
        self.flush();
        if self.margins.last().is_some_and(|margin| margin.first.is_some()) {
            self.emit(Row::default()); // an item without text
        }
        self.margins.pop();
    }

    fn begin_code(&mut self, kind: &CodeBlockKind<'_>) {
        self.flush();
        self.code = Some(String::new());
        let CodeBlockKind::Fenced(info) = kind else { return };
        let language = info.split_whitespace().next().unwrap_or_default();
        if self.has_labels && !language.is_empty() {
            self.emit(Row::of(Look::DIM, language));
        }
    }

    fn end_code(&mut self) {
        let code = self.code.take().unwrap_or_default();
        for line in code.lines() {
            self.emit(Row::of(Look::CODE, line));
        }
        self.is_apart = true;
    }

    fn end_table(&mut self) {
        let table = self.table.take().unwrap_or_default();
        for row in table.rows(self.columns()) {
            self.emit(row);
        }
        self.is_apart = true;
    }

    fn add_margin(&mut self, first: Option<String>, later: &str, look: Look) {
        let is_deep = self.margins.len() >= DEEPEST_INDENT;
        let (first, later) = if is_deep { (None, "") } else { (first, later) };
        // The blank row before a list or quote is outside of it.
        self.set_apart();
        self.margins.push(Margin { first, later: later.to_owned(), look });
    }

    /// Returns the number of columns left by the margins.
    fn columns(&self) -> usize {
        let margins = self.margins.iter().map(|margin| margin.later.chars().count());
        self.canvas.columns.saturating_sub(margins.sum()).max(NARROWEST_TEXT)
    }

    /// Ends the current text, which may be empty.
    fn flush(&mut self) {
        let text = std::mem::take(&mut self.text).trim_end();
        if text.is_empty() {
            return;
        }
        for row in text.wrap(self.columns()) {
            self.emit(row);
        }
    }

    /// Adds the blank row that must precede the next row.
    fn set_apart(&mut self) {
        if std::mem::take(&mut self.is_apart) && !self.rows.is_empty() {
            let mut blank = Row::default();
            for margin in &self.margins {
                blank.push(margin.look, &margin.later);
            }
            self.rows.push(blank.trim_end());
        }
    }

    /// Adds a row after the margins.
    fn emit(&mut self, text: Row) {
        self.set_apart();
        let mut row = Row::default();
        for margin in &mut self.margins {
            let shown = margin.first.take();
            row.push(margin.look, shown.as_deref().unwrap_or(&margin.later));
        }
        row.append(text);
        self.rows.push(row);
    }
}
