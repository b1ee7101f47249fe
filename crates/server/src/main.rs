//! `linerate-server`.

#![forbid(unsafe_code)]

use std::{io::IsTerminal, path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use server::{
    commands::{self, ApiKeys, Common, Nodes, PreAuthKeys, Users},
    configuration::{Configuration, Flags},
    import::{self, Import},
    policy::PolicyFile,
    serve::serve,
};
use tracing_subscriber::{filter::LevelFilter, fmt, prelude::*};

/// Host a network for linerate and for Tailscale's clients.
#[derive(Debug, Parser)]
#[command(name = "linerate-server", version, disable_help_subcommand = true)]
struct Arguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server.
    Serve {
        #[command(flatten)]
        flags: Flags,
        /// Log what is of use to who looks for a fault.
        #[arg(long)]
        debug: bool,
    },
    /// Make, show and delete users.
    #[command(subcommand, aliases = ["user"])]
    Users(Users),
    /// Make, show and delete keys that machines join with.
    #[command(subcommand, name = "preauthkeys", aliases = ["preauthkey", "authkey", "pre"])]
    PreAuthKeys(PreAuthKeys),
    /// Show, name, tag, expire and delete nodes, and approve their routes.
    #[command(subcommand, aliases = ["node"])]
    Nodes(Nodes),
    /// Take a network over: headscale's, or one that was exported or backed up.
    Import(Import),
    /// Write the whole network, with its keys, into a file of JSON.
    Export {
        /// The file.
        file: PathBuf,
    },
    /// Copy the network, with its keys, into a file of SQLite, while it is served.
    Backup {
        /// The file, which is made.
        file: PathBuf,
    },
    /// Make, show, expire and delete keys of the API.
    #[command(subcommand, name = "apikeys", aliases = ["apikey", "api"])]
    ApiKeys(ApiKeys),
    /// Print a link that opens the page, once and within an hour.
    AdminLink,
    /// Show what administrators did, the newest first.
    Audit {
        /// How many entries.
        #[arg(short, long, default_value = "100")]
        limit: usize,
    },
    /// Set and show the policy, check one, and show what it means.
    #[command(subcommand)]
    Policy(PolicyFile),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("linerate-server: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("linerate-server: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(Arguments { common, command }: Arguments) -> anyhow::Result<()> {
    match command {
        Command::Serve { flags, debug } => {
            log(debug);
            serve(Configuration::read(common.config.as_deref())?.with(flags)).await
        }
        Command::Users(command) => commands::users(&common, command).await,
        Command::PreAuthKeys(command) => commands::pre_auth_keys(&common, command).await,
        Command::Nodes(command) => commands::nodes(&common, command).await,
        Command::Import(asked) => import::import(&common, asked).await,
        Command::Export { file } => import::export(&common, &file).await,
        Command::Backup { file } => import::back_up(&common, &file).await,
        Command::ApiKeys(command) => commands::api_keys(&common, command).await,
        Command::AdminLink => commands::admin_link(&common).await,
        Command::Audit { limit } => commands::audit(&common, limit).await,
        Command::Policy(command) => command.run(&common).await,
    }
}

/// Logs to standard error: the service manager adds the time.
fn log(debug: bool) {
    let level = if debug { LevelFilter::DEBUG } else { LevelFilter::INFO };
    let own = tracing_subscriber::filter::Targets::new().with_target("server", level);
    let layer = fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .without_time()
        .with_filter(own);
    tracing_subscriber::registry().with(layer).init();
}
