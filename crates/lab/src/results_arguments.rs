//! The arguments of commands that read results.

use std::path::PathBuf;

use clap::Args;

#[derive(Args)]
pub(crate) struct Compare {
    /// Directory of the earlier results, or of reference results: a summary.csv alone
    pub(crate) before: PathBuf,
    /// Directory of the later results
    pub(crate) after: PathBuf,
}

#[derive(Args)]
pub(crate) struct Plot {
    /// Directory with the results of lab run
    pub(crate) directory: PathBuf,
    /// Column of the horizontal axis; also a key of [sweep], such as delay or loss
    #[arg(long, value_name = "COLUMN")]
    pub(crate) x: String,
    /// Column of the vertical axis, of which the mean is drawn; or cdf, the share of the lines with
    /// at most the value of x
    #[arg(long, value_name = "COLUMN")]
    pub(crate) y: String,
    /// Column whose values are the series
    #[arg(long, value_name = "COLUMN", default_value = "dataplane")]
    pub(crate) series: String,
    /// Only lines with this value
    #[arg(long = "where", value_name = "COLUMN=VALUE", value_parser = equals)]
    pub(crate) only: Vec<(String, String)>,
    /// Table with the columns, such as queue-pairs.csv [default: the first that has them]
    #[arg(long, value_name = "FILE")]
    pub(crate) table: Option<String>,
    /// Logarithmic horizontal axis
    #[arg(long)]
    pub(crate) log_x: bool,
    /// Logarithmic vertical axis
    #[arg(long)]
    pub(crate) log_y: bool,
    /// Title of the horizontal axis
    #[arg(long, value_name = "TEXT")]
    pub(crate) x_title: Option<String>,
    /// Title of the vertical axis
    #[arg(long, value_name = "TEXT")]
    pub(crate) y_title: Option<String>,
    /// As wide as a page, not as a column of a paper
    #[arg(long)]
    pub(crate) wide: bool,
    /// SVG file to write
    #[arg(long, value_name = "FILE", required_unless_present = "pdf")]
    pub(crate) svg: Option<PathBuf>,
    /// PDF file to write, by rsvg-convert
    #[arg(long, value_name = "FILE")]
    pub(crate) pdf: Option<PathBuf>,
}

fn equals(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').ok_or_else(|| format!("'{text}': expected COLUMN=VALUE"))?;
    Ok((pair.0.to_owned(), pair.1.to_owned()))
}
