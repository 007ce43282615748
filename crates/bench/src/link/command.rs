//! The commands that run at the two ends of a link, and their exit codes.

use std::io;
use std::os::unix::process::CommandExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{self, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

use super::LinkError;
use super::netns::{Namespace, within};
use super::tun::{CLIENT, SERVER};

/// Time limit for a server to exit after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);

/// Starts `command` within `inside`, or in this machine's network. Its environment contains the
/// addresses of both ends.
///
/// # Errors
/// If it cannot be started.
pub fn start(mut command: Command, inside: Option<&Namespace>) -> Result<Child, LinkError> {
    name_ends(command.as_std_mut());
    command.kill_on_drop(true);
    let name = command.as_std().get_program().to_string_lossy().into_owned();
    let runtime = tokio::runtime::Handle::current();
    let spawn = || {
        let _context = runtime.enter();
        command.spawn()
    };
    within(inside, spawn)?.map_err(LinkError::io(name))
}

fn name_ends(command: &mut process::Command) {
    command
        .env("LOQUENT_LINK_SERVER", SERVER.to_string())
        .env("LOQUENT_LINK_CLIENT", CLIENT.to_string());
}

/// A command with all processes that it starts, as a process group that ends with this program.
#[derive(Debug)]
pub struct ProcessGroup {
    leader: process::Child,
    group: Pid,
    /// Kills the group when its standard input ends, which happens however this program ends.
    watchdog: process::Child,
}

impl ProcessGroup {
    /// Starts a command within `inside`, or in this machine's network.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(
        mut command: process::Command,
        inside: Option<&Namespace>,
    ) -> Result<Self, LinkError> {
        name_ends(&mut command);
        command.stdin(Stdio::null()).process_group(0);
        let name = command.get_program().to_string_lossy().into_owned();
        let leader = within(inside, || command.spawn())?.map_err(LinkError::io(name))?;
        let id = leader.id() as i32;
        let mut watchdog = process::Command::new("sh");
        watchdog.args(["-c", "read _; kill -KILL 0"]).stdin(Stdio::piped()).process_group(id);
        let watchdog = watchdog.spawn().map_err(LinkError::io("sh"))?;
        Ok(Self { leader, group: Pid::from_raw(id), watchdog })
    }

    /// Returns the process id of the command.
    pub fn id(&self) -> u32 {
        self.leader.id()
    }

    /// Returns the exit status of the command, if it has ended.
    ///
    /// # Errors
    /// If the status cannot be read.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.leader.try_wait()
    }

    /// Sends SIGTERM, waits for a few seconds, and kills any remaining processes.
    pub async fn stop(mut self) {
        // It may have ended by itself.
        let _ = kill(self.group, Signal::SIGTERM);
        let asked = Instant::now();
        while asked.elapsed() < GRACE && self.ended().is_ok_and(|status| status.is_none()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // The watchdog is of the group, so that there always is one to kill.
        let _ = killpg(self.group, Signal::SIGKILL);
        let _ = (self.leader.wait(), self.watchdog.wait());
    }
}

/// Waits until `client` has ended, or without a client until a signal asks to stop. Signals are
/// forwarded to the client, which decides how to handle them.
///
/// # Errors
/// If signals cannot be waited for.
pub async fn wait(client: Option<Child>) -> io::Result<ExitCode> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let mut client = client;
    loop {
        let gone = async {
            match &mut client {
                Some(client) => client.wait().await,
                None => std::future::pending().await,
            }
        };
        let received = tokio::select! {
            status = gone => return Ok(exit_code(status?)),
            _ = interrupt.recv() => Signal::SIGINT,
            _ = terminate.recv() => Signal::SIGTERM,
            _ = hang_up.recv() => Signal::SIGHUP,
        };
        match client.as_ref().and_then(Child::id) {
            // It may be gone already, which the next turn will find.
            Some(id) => drop(kill(Pid::from_raw(id as i32), received)),
            None => return Ok(ExitCode::SUCCESS),
        }
    }
}

/// Converts an exit status to an exit code, as shells do.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(code as u8)
}
