//! What a workload is: its settings and its hosts.

use std::time::Duration;

use quantity::NumberOrText;
use roce::{LENGTH_MAX, Settings, SourcePort};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::pipeline::Pipeline;
use super::schedule::{Collective, Schedule, ScheduleError};
use experiment::random::{Random, SEED};

/// A host that takes part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Its name in reports. In a file of `lab workload`, also that of a node of the fabric, if
    /// `namespace` is missing.
    pub name: String,
    /// Its network namespace; `None` for the caller's.
    pub namespace: Option<String>,
    /// Its interface, which has an IPv4 address.
    pub interface: String,
    /// Its site, for a hierarchical AllReduce.
    #[serde(default)]
    pub site: u32,
}

/// How the messages of a connection use its queue pairs.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Dealing {
    /// One message after another, each on the next queue pair.
    #[default]
    RoundRobin,
    /// Each message in equal parts on all queue pairs (NCCL_IB_SPLIT_DATA_ON_QPS).
    Split,
}

/// Time that a rank computes before it communicates in an iteration.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "distribution", deny_unknown_fields)]
pub enum Compute {
    /// None.
    #[default]
    None,
    /// The same time at every rank.
    Fixed {
        /// Seconds, or a time with its unit (`"5ms"`).
        #[serde(deserialize_with = "quantity::seconds")]
        #[schemars(with = "NumberOrText")]
        seconds: f64,
    },
    /// A time between two bounds, drawn for each rank and iteration.
    Uniform {
        /// Minimum in seconds, or with its unit.
        #[serde(deserialize_with = "quantity::seconds")]
        #[schemars(with = "NumberOrText")]
        min: f64,
        /// Maximum in seconds, or with its unit.
        #[serde(deserialize_with = "quantity::seconds")]
        #[schemars(with = "NumberOrText")]
        max: f64,
    },
    /// An exponentially distributed time, drawn for each rank and iteration.
    Exponential {
        /// Mean in seconds, or with its unit.
        #[serde(deserialize_with = "quantity::seconds")]
        #[schemars(with = "NumberOrText")]
        mean: f64,
    },
}

impl Compute {
    /// The time of a rank in an iteration. The same seed draws the same times.
    #[must_use]
    pub fn draw(self, seed: u64, rank: usize, iteration: u32) -> Duration {
        let place = (rank as u64) << 32 | u64::from(iteration);
        let mut random = Random::new(seed ^ place.wrapping_mul(0xd134_2543_de82_ef95));
        let unit = (random.next() >> 11) as f64 / (1_u64 << 53) as f64;
        let seconds = match self {
            Self::None => 0.0,
            Self::Fixed { seconds } => seconds,
            Self::Uniform { min, max } => min + (max - min) * unit,
            Self::Exponential { mean } => -mean * (1.0 - unit).ln(),
        };
        Duration::try_from_secs_f64(seconds).unwrap_or_default()
    }
}

/// The settings of a workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Workload {
    /// The collective operation.
    pub collective: Collective,
    /// Bytes of a rank's buffer, or a size with its unit (`"2MB"`). Of a pipeline: of an activation
    /// of one micro-batch.
    #[serde(deserialize_with = "quantity::bytes")]
    #[schemars(with = "NumberOrText", extend("minimum" = 1, "maximum" = 1_099_511_627_776_u64))]
    pub bytes: u64,
    /// Maximum bytes of a message, or a size with its unit.
    #[serde(deserialize_with = "quantity::bytes")]
    #[schemars(with = "NumberOrText", extend("minimum" = 8, "maximum" = 1_073_741_824))]
    pub message: u32,
    /// Queue pairs between two hosts.
    #[schemars(range(min = 1, max = 4096))]
    pub queue_pairs: u32,
    /// How messages use them.
    pub dealing: Dealing,
    /// How inner UDP source ports are chosen: `inner-port` in a file, too.
    #[serde(alias = "inner-port")]
    #[schemars(skip)]
    pub source_port: SourcePort,
    /// Iterations that count.
    #[schemars(range(min = 1))]
    pub iterations: u32,
    /// Iterations before those.
    pub warm_up: u32,
    /// Time that ranks compute in each iteration.
    pub compute: Compute,
    /// What the stages of a pipeline compute, in addition.
    pub pipeline: Pipeline,
    /// Skew of an AllToAll: the exponent of Zipf's law for the destinations' shares. 0 for none.
    #[schemars(range(min = 0, max = 10))]
    pub skew: f64,
    /// Seed of queue pair numbers, sequence numbers, skew, pairs and compute times.
    #[schemars(skip)]
    pub seed: u64,
    /// Maximum seconds of an iteration, or a time with its unit (`"30s"`).
    #[serde(deserialize_with = "quantity::seconds")]
    #[schemars(with = "NumberOrText")]
    pub limit: f64,
    /// The rate in bits per second, or with its unit (`"1Gbit"`), with which the result is compared.
    /// 0 for the rate in `transport`.
    #[serde(deserialize_with = "quantity::bits")]
    #[schemars(with = "NumberOrText")]
    pub roofline: u64,
    /// Settings of the connections.
    pub transport: Settings,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            collective: Collective::AllReduceRing,
            bytes: 16 << 20,
            message: 1 << 20,
            queue_pairs: 4,
            dealing: Dealing::RoundRobin,
            source_port: SourcePort::PerQueuePair,
            iterations: 10,
            warm_up: 1,
            compute: Compute::None,
            pipeline: Pipeline::default(),
            skew: 0.0,
            seed: SEED,
            limit: 300.0,
            roofline: 0,
            transport: Settings::default(),
        }
    }
}

/// A workload on its hosts. Rank 0 is the first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Its name in reports.
    pub name: String,
    /// The hosts of the ranks.
    pub hosts: Vec<Host>,
    /// The settings.
    pub workload: Workload,
}

/// A setting is out of range.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum JobError {
    /// The collective does not fit the hosts.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// A setting of the connections is out of range.
    #[error(transparent)]
    Transport(#[from] roce::SettingError),
    /// Another setting is out of range.
    #[error("{name} is {value}: use {range}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: f64,
        /// The values that are valid.
        range: &'static str,
    },
}

impl Job {
    /// Checks the settings, and returns the schedule of an iteration.
    ///
    /// # Errors
    /// [`JobError`] names the setting and its range.
    pub fn schedule(&self) -> Result<Schedule, JobError> {
        let Workload { message, queue_pairs, iterations, warm_up, bytes, skew, limit, .. } =
            self.workload;
        let range = |name, value: f64, valid: bool, range| {
            if valid { Ok(()) } else { Err(JobError::Setting { name, value, range }) }
        };
        range("bytes", bytes as f64, (1..=1 << 40).contains(&bytes), "1 byte to 1 TiB")?;
        let fits = (8..=LENGTH_MAX).contains(&message);
        range("message", message.into(), fits, "8 bytes to 1 GiB")?;
        let fits = (1..=4096).contains(&queue_pairs);
        range("queue-pairs", queue_pairs.into(), fits, "1 to 4096")?;
        range("iterations", iterations.into(), iterations > 0, "at least 1")?;
        let fits = warm_up.checked_add(iterations).is_some();
        range("iterations", iterations.into(), fits, "below 2^32 with those of the warm-up")?;
        range("skew", skew, (0.0..=10.0).contains(&skew), "0 to 10")?;
        range("limit", limit, limit > 0.0 && limit < 1e6, "a number of seconds above 0")?;
        let compute = match self.workload.compute {
            Compute::None => 0.0,
            Compute::Fixed { seconds } => seconds,
            Compute::Uniform { min, max } => {
                range("compute.max", max, min <= max && max < 1e6, "min to 1,000,000 seconds")?;
                min
            }
            Compute::Exponential { mean } => mean,
        };
        range("compute", compute, (0.0..1e6).contains(&compute), "0 to 1,000,000 seconds")?;
        let Pipeline { micro_batches, forward, backward } = self.workload.pipeline;
        let fits = (1..=65536).contains(&micro_batches);
        range("pipeline.micro-batches", micro_batches.into(), fits, "1 to 65536")?;
        for (name, seconds) in [("pipeline.forward", forward), ("pipeline.backward", backward)] {
            range(name, seconds, (0.0..1e6).contains(&seconds), "seconds from 0")?;
        }
        self.workload.transport.check()?;
        let sites: Vec<u32> = self.hosts.iter().map(|host| host.site).collect();
        let extra = (skew, self.workload.seed);
        let (collective, stages) = (self.workload.collective, self.workload.pipeline);
        Ok(collective.schedule(self.hosts.len(), bytes, &sites, extra, stages)?)
    }

    /// The time that the schedule needs at the roofline's rate, in nanoseconds, with the headers
    /// that hosts send. `None` without a rate.
    #[must_use]
    pub fn ideal(&self, schedule: &Schedule) -> Option<u64> {
        let transport = &self.workload.transport;
        let rate = match self.workload.roofline {
            0 => transport.rate,
            rate => rate,
        };
        let mtu = f64::from(transport.mtu);
        let frame = mtu + roce::OVERHEAD as f64;
        let bits = schedule.critical_bytes() as f64 * frame / mtu * 8.0;
        (rate > 0).then(|| (bits / rate as f64 * 1e9) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(workload: Workload) -> Job {
        let host = |number: u32| Host {
            name: format!("host{number}"),
            namespace: None,
            interface: "eth1".into(),
            site: number / 2,
        };
        Job { name: "job".into(), hosts: (0..4).map(host).collect(), workload }
    }

    #[test]
    fn the_ideal_time_counts_headers() {
        let transport = Settings { rate: 1_000_000_000, ..Settings::default() };
        let all = Workload { bytes: 1_024_000, transport, ..Workload::default() };
        let job = job(all);
        let schedule = job.schedule().unwrap();
        // 2 × 3/4 of 1,000 packets, each 1,082 bytes.
        assert_eq!(job.ideal(&schedule), Some(1500 * 1082 * 8));
        let other = Workload { roofline: 500_000_000, ..job.workload.clone() };
        let other = Job { workload: other, ..job };
        assert_eq!(other.ideal(&schedule), Some(2 * 1500 * 1082 * 8));
    }

    /// As in docs/guide/workloads.md, with all forms of a value.
    #[test]
    fn a_job_can_be_written_as_json() {
        let text = r#"[{"name": "training",
            "hosts": [{"name": "host1", "namespace": "host1", "interface": "eth1"},
                      {"name": "host2", "namespace": "host2", "interface": "eth1"}],
            "workload": {"collective": "all-reduce-ring", "bytes": 312000000, "queue-pairs": 16,
                "compute": {"distribution": "uniform", "min": 0.01, "max": 0.02},
                "inner-port": {"constant": 49152}, "dealing": "split",
                "transport": {"mtu": 1024, "rate": 1000000000, "acknowledge-every": 8,
                              "dcqcn": {"additive-increase": 5e6}}}}]"#;
        let jobs: Vec<Job> = serde_json::from_str(text).unwrap();
        let Workload { bytes, queue_pairs, compute, transport, .. } = &jobs[0].workload;
        assert_eq!((*bytes, *queue_pairs), (312_000_000, 16));
        assert_eq!(*compute, Compute::Uniform { min: 0.01, max: 0.02 });
        assert_eq!(transport.acknowledge_every, 8);
        assert!(transport.dcqcn.is_some_and(|dcqcn| dcqcn.fast_recovery == 5));
        assert!(jobs[0].schedule().is_ok());
        let again = serde_json::to_string(&jobs).unwrap();
        assert_eq!(serde_json::from_str::<Vec<Job>>(&again).unwrap(), jobs);
        let wrong = text.replace("queue-pairs", "queuepairs");
        assert!(
            serde_json::from_str::<Vec<Job>>(&wrong).unwrap_err().to_string().contains("line 4")
        );
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let refused = |workload: Workload| job(workload).schedule().unwrap_err().to_string();
        let message = refused(Workload { message: 4, ..Workload::default() });
        assert_eq!(message, "message is 4: use 8 bytes to 1 GiB");
        let compute = Compute::Uniform { min: 2.0, max: 1.0 };
        assert!(refused(Workload { compute, ..Workload::default() }).starts_with("compute"));
        let message = refused(Workload { iterations: u32::MAX, ..Workload::default() });
        assert!(message.starts_with("iterations is 4294967295: use below 2^32"), "{message}");
        let mtu = Settings { mtu: 1500, ..Settings::default() };
        assert!(refused(Workload { transport: mtu, ..Workload::default() }).contains("path MTU"));
        for collective in [Collective::AllReduceHierarchical, Collective::AllReduceHalvingDoubling]
        {
            let workload = Workload { collective, ..Workload::default() };
            assert!(job(workload).schedule().is_ok());
        }
    }

    #[test]
    fn compute_times_follow_the_seed_and_the_distribution() {
        let mean = |compute: Compute| {
            let times = (0..4000).map(|at| compute.draw(1, at % 4, at as u32).as_secs_f64());
            times.sum::<f64>() / 4000.0
        };
        assert!((mean(Compute::Uniform { min: 1.0, max: 3.0 }) - 2.0).abs() < 0.05);
        assert!((mean(Compute::Exponential { mean: 2.0 }) - 2.0).abs() < 0.1);
        assert_eq!(mean(Compute::Fixed { seconds: 0.5 }), 0.5);
        let exponential = Compute::Exponential { mean: 1.0 };
        assert_eq!(exponential.draw(7, 1, 2), exponential.draw(7, 1, 2));
        assert_ne!(exponential.draw(7, 1, 2), exponential.draw(7, 2, 1));
        assert_ne!(exponential.draw(7, 1, 2), exponential.draw(8, 1, 2));
    }
}
