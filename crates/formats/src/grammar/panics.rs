//! Panics inside llguidance. It catches them, and its hook makes a backtrace of each: the names of
//! functions take tens of megabytes and tenths of a second where the program has debug information,
//! which a request must not cost.

use std::cell::Cell;
use std::panic;
use std::sync::Once;

use llguidance::ParserFactory;
use llguidance::api::TopLevelGrammar;

thread_local! {
    /// True while llguidance works on this thread.
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` of llguidance, and makes no backtrace if it panics.
pub(super) fn quietly<T>(work: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            IS_QUIET.set(self.0);
        }
    }
    let _before = Before(IS_QUIET.replace(true));
    work()
}

/// Installs the hook in front of that of llguidance.
pub(super) fn install(factory: &ParserFactory) {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // The first parser installs llguidance's.
        let any = TopLevelGrammar::from_lark("start: \"a\"".into());
        factory.create_parser(any).expect("it is a grammar");
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_QUIET.get() {
                before(info);
            }
        }));
    });
}
