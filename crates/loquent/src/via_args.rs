//! The flags that name networks of this machine.

use loquent_client::{Config, PathMode, Via};

/// Flags of the networks to connect over.
#[derive(Debug, Clone, clap::Args)]
pub struct ViaArgs {
    /// Networks to keep a connection over, the better one first: one or two interfaces or local
    /// addresses [default: one connection, over the network that the system chooses]
    #[arg(long, value_name = "NETWORK", env = "LOQUENT_VIA", value_delimiter = ',')]
    pub via: Vec<Via>,
}

/// Flags of the networks to connect over, and of how two are used.
#[derive(Debug, Clone, clap::Args)]
pub struct TwoNetworksArgs {
    #[command(flatten)]
    networks: ViaArgs,
    /// Use of two networks of --via
    #[arg(
        long,
        value_name = "MODE",
        env = "LOQUENT_VIA_MODE",
        value_enum,
        default_value = "backup"
    )]
    via_mode: ViaMode,
}

impl TwoNetworksArgs {
    /// Returns `config` with these networks.
    pub fn apply(self, config: Config) -> Config {
        Config { via: self.networks.via, via_mode: self.via_mode.mode(), ..config }
    }
}

/// Use of two networks, as the flag names it.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum ViaMode {
    /// The second network carries an answer only while the first one is losing
    Backup,
    /// Both carry every answer
    Redundant,
}

impl ViaMode {
    /// Returns the mode as the client names it.
    const fn mode(self) -> PathMode {
        match self {
            Self::Backup => PathMode::Backup,
            Self::Redundant => PathMode::Redundant,
        }
    }
}
