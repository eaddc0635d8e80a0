//! Other jobs of distributed training, which run beside the workload that is measured.

use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;

use crate::units::Name;

/// A job that runs again and again while the workload does.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Job {
    /// The name in the report.
    pub name: Name,
    /// The hosts, by site. They may be those of the workload or of another job, too.
    pub sites: Vec<Vec<Name>>,
    /// The keys of a job of `lab workload`, without `iterations`, `warm-up`, `source-port` and `seed`.
    /// Default of `queue-pairs`: those of the run.
    #[serde(default)]
    #[schemars(with = "std::collections::BTreeMap<String, serde_json::Value>")]
    pub workload: toml::Table,
    /// The variants in which it runs. Default: always.
    pub variants: Option<Vec<Name>>,
}

impl Job {
    /// Whether it runs in a variant.
    #[must_use]
    pub fn is_in(&self, variant: Option<&Name>) -> bool {
        self.variants.as_ref().is_none_or(|names| variant.is_some_and(|name| names.contains(name)))
    }

    /// What is wrong with it, beside the jobs before it.
    fn check(&self, before: &[&Self], variants: &[&Name]) -> Result<(), String> {
        let name = &self.name;
        if before.iter().any(|other| other.name == *name) {
            return Err(format!("two jobs are called '{name}': give one another name"));
        }
        if self.sites.iter().flatten().count() < 2 {
            return Err(format!(
                "the job '{name}' needs hosts: set sites = [[\"host2\"], [\"host3\"]]"
            ));
        }
        match self.variants.iter().flatten().find(|name| !variants.contains(name)) {
            Some(unknown) => {
                Err(format!("the job '{name}' runs in '{unknown}', which is no [[variant]]"))
            }
            None => Ok(()),
        }
    }
}

/// The offset of a job in the file that cannot be run, and what is wrong with it. `can_run`: whether
/// the experiment is one that jobs can run beside.
pub(crate) fn check(
    jobs: &[Spanned<Job>],
    can_run: bool,
    variants: &[&Name],
) -> Result<(), (usize, String)> {
    let mut before = Vec::new();
    for job in jobs {
        let at = |message| (job.span().start, message);
        if !can_run {
            let message = "a [[job]] runs beside a [workload], and not with a [[failure]]";
            return Err(at(message.to_owned()));
        }
        job.get_ref().check(&before, variants).map_err(at)?;
        before.push(job.get_ref());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{Experiment, FileError};

    const FILE: &str = "name = 'x'\ntitle = 't'\nquestion = 'Why?'\nworkload = { bytes = 1000 }
topologies = ['a.clab.yml']\ndataplane = [{policy = 'kernel'}]
[traffic]\nsites = [['a'], ['b']]\n[[variant]]\nname = 'alone'\n[[variant]]\nname = 'shared'
[[job]]\nname = 'neighbour'\nsites = [['c'], ['d']]\nvariants = ['shared']
";

    fn parse(text: &str) -> Result<Experiment, FileError> {
        Experiment::parse("x.toml".as_ref(), text)
    }

    #[test]
    fn a_job_runs_in_the_variants_that_it_names() {
        let experiment = parse(FILE).unwrap();
        let names = |variant: &str| -> Vec<String> {
            let variant = Name::try_from(variant.to_owned()).unwrap();
            experiment.jobs(Some(&variant)).map(|job| job.name.to_string()).collect()
        };
        assert_eq!((names("alone"), names("shared")), (vec![], vec!["neighbour".to_owned()]));
        let always = parse(&FILE.replace("variants = ['shared']", "")).unwrap();
        assert_eq!((always.jobs(None).count(), experiment.jobs(None).count()), (1, 0));
    }

    #[test]
    fn a_job_that_cannot_run_is_named_with_its_line() {
        let refused = |text: &str| parse(text).unwrap_err().to_string();
        let unknown = refused(&FILE.replace("['shared']", "['other']"));
        assert!(unknown.contains("line 13") && unknown.contains("no [[variant]]"), "{unknown}");
        assert!(refused(&FILE.replace("[['c'], ['d']]", "[['c']]")).contains("needs hosts"));
        let twice = format!("{FILE}[[job]]\nname = 'neighbour'\nsites = [['c'], ['d']]");
        assert!(refused(&twice).contains("two jobs are called 'neighbour'"));
        for text in [
            FILE.replace("workload = { bytes = 1000 }", ""),
            format!("{FILE}[[failure]]\nkind = 'carrier'"),
        ] {
            assert!(refused(&text).contains("runs beside a [workload]"));
        }
    }
}
