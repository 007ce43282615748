//! Real-time priority for threads that work for microseconds but must not be late.

use thread_priority::{
    RealtimeThreadSchedulePolicy, ThreadPriority, ThreadPriorityValue, ThreadSchedulePolicy,
    set_thread_priority_and_policy, thread_native_id,
};

/// Low among real-time priorities, so that the kernel's own threads run first.
const PRIORITY: u8 = 5;

/// Gives this thread, and the processes that it starts, priority over all ordinary threads. Returns
/// true if granted, which needs root; without it, times are accurate only on an idle machine.
pub fn be_realtime() -> bool {
    let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
    let priority = ThreadPriorityValue::try_from(PRIORITY).map(ThreadPriority::Crossplatform);
    priority.is_ok_and(|priority| {
        set_thread_priority_and_policy(thread_native_id(), priority, policy).is_ok()
    })
}
