//! Renders Markdown that arrives in pieces as rows of the screen.
//!
//! The text is cut into blocks (paragraphs, lists, tables, code blocks). A complete block is parsed
//! once and does not change. The last one is parsed again with every piece, after closing the marks
//! left open at its end ([`mend`]), so that `**wo` is bold before the closing marks arrive.

mod blocks;
mod layout;
mod mend;
mod table;

use super::row::{Canvas, Row};
pub(super) use blocks::{Block, Blocks};

impl Block {
    /// Returns the rows of the block; none if it has only blank lines.
    pub(super) fn rows(&self, canvas: Canvas) -> Vec<Row> {
        let mended = (!self.is_complete).then(|| mend::mend(&self.source));
        let source = mended.as_deref().unwrap_or(&self.source);
        layout::rows(source, canvas, !self.goes_on)
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::Look;
    use super::*;

    const CANVAS: Canvas = Canvas { columns: 24, rows: 20, colour: true };

    fn texts(source: &str, is_complete: bool) -> Vec<String> {
        let block = Block { source: source.into(), goes_on: false, is_complete };
        block.rows(CANVAS).iter().map(Row::text).collect()
    }

    fn complete(source: &str) -> Vec<String> {
        texts(source, true)
    }

    #[test]
    fn blocks_become_rows() {
        assert_eq!(complete("# One\n"), ["One"]);
        assert_eq!(complete("a **b** _c_ `d` ~~e~~\nf"), ["a b c d e", "f"]);
        assert_eq!(
            complete("- one two three four five six\n  - in\n- b"),
            ["• one two three four", "  five six", "  ◦ in", "• b"]
        );
        assert_eq!(complete("9. a\n10. b\n\n    c"), ["9. a", "", "10. b", "", "    c"]);
        assert_eq!(complete("> a\n> b\n>\n> c"), ["│ a", "│ b", "│", "│ c"]);
        assert_eq!(complete("```rs\nfn a() {\n\tb\n}\n```"), ["rs", "fn a() {", "    b", "}"]);
        assert_eq!(complete("- [x] done\n- [ ] open"), ["• ☑ done", "• ☐ open"]);
        assert_eq!(complete("---"), ["─".repeat(24)]);
        assert_eq!(complete("[a](https://b.c)"), ["a (https://b.c)"]);
        assert_eq!(complete("<https://d.e>"), ["https://d.e"]);
        assert_eq!(complete("1 < 2 & 3 &amp; <b>4</b>"), ["1 < 2 & 3 & <b>4</b>"]);
        assert_eq!(complete("\n \n"), Vec::<String>::new());
    }

    #[test]
    fn tables_fit_the_screen() {
        let table = "| name | n |\n|:--|--:|\n| a | 1 |\n| `long` word | 23 |\n";
        let rows = ["name      │  n", "──────────┼───", "a         │  1", "long word │ 23"];
        assert_eq!(complete(table), rows);
        let wide = "| a | b |\n|-|-|\n| one two three four five | six seven eight nine ten |\n";
        let rows = complete(wide);
        assert!(rows.iter().all(|row| row.chars().count() <= CANVAS.columns), "{rows:#?}");
        assert!(rows.len() > 3, "cells are wrapped: {rows:#?}");
    }

    #[test]
    fn an_open_end_looks_as_it_will() {
        for (source, shown) in [
            ("a **wo", "a wo"),
            ("a **", "a"),
            ("a **wo*", "a wo"),
            ("a `x *y", "a x *y"),
            ("a [text](http", "a text"),
            ("a [te", "a te"),
            ("text\n-", "text"),
            ("1", ""),
            ("``", ""),
            ("2 * 3", "2 * 3"),
            ("snake_case_", "snake_case_"),
        ] {
            let rows = texts(source, false);
            assert_eq!(rows.concat(), shown, "{source}");
        }
        assert_eq!(texts("| a | b |\n|-", false), ["a │ b", "──┼──"]);
        assert_eq!(texts("```py\nx\n``", false), ["py", "x"]);
        let bold = Row::of(Look::BOLD, "wo");
        assert_eq!(
            Block { source: "**wo".into(), goes_on: false, is_complete: false }.rows(CANVAS),
            [bold]
        );
    }
}
