//! `linerate show`: like `wg show`, with the numbers of dropped packets by reason.

mod json;
mod text;

use std::io::IsTerminal;

use clap::Args;

use crate::interface;

/// Arguments of `linerate show`.
#[derive(Args)]
pub(crate) struct Show {
    /// Only this interface; all running ones by default.
    interface: Option<String>,
    /// Print JSON for programs; docs/json.md is the schema.
    #[arg(long)]
    json: bool,
}

impl Show {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let interfaces = interface::query(self.interface.as_deref())?;
        if self.json {
            println!("{:#}", json::describe(&interfaces));
            return Ok(());
        }
        let style = text::Style { bold: std::io::stdout().is_terminal() };
        let texts: Vec<String> =
            interfaces.iter().map(|interface| text::describe(interface, style)).collect();
        print!("{}", texts.join("\n"));
        Ok(())
    }
}
