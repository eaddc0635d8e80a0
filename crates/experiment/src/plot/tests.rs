use super::*;

fn chart(value: f64) -> Chart {
    let series = |name: &str, reference| Series {
        name: name.into(),
        points: Mark::at_names([Some((1.5, 0.25)), None, Some((value, f64::INFINITY))]),
        reference,
    };
    Chart {
        title: "a < b".into(),
        x_title: "queue pairs".into(),
        y_title: "MMR".into(),
        x: Axis::Names(["4", "8", "16"].map(str::to_owned).into()),
        bottom: 1.0,
        logarithmic: false,
        kind: Kind::Lines,
        series: vec![series("kernel", false), series("expected", true)],
    }
}

fn ticks(chart: &Chart) -> (Scale, Vec<f64>) {
    let scale = Scale::new(chart, Size::Page.area());
    let ticks = scale.y_ticks().iter().map(|(tick, _)| *tick).collect();
    (scale, ticks)
}

#[test]
fn the_axis_has_round_steps_and_holds_all_values() {
    for (value, expected) in [
        (4.0, vec![1.0, 2.0, 3.0, 4.0]),
        (1.74, vec![1.0, 1.2, 1.4, 1.6, 1.8]),
        (1.1, vec![1.0, 1.2, 1.4, 1.6, 1.8]),
        (23.0, vec![1.0, 6.0, 11.0, 16.0, 21.0, 26.0]),
    ] {
        let (_, found) = ticks(&chart(value));
        let near = found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-9);
        assert!(near && found.len() == expected.len(), "{value}: {found:?}");
    }
    let powers = Chart { logarithmic: true, ..chart(150.0) };
    let (scale, found) = ticks(&powers);
    assert_eq!(found, [1.0, 10.0, 100.0, 1000.0]);
    assert!((scale.y(10.0) - scale.y(100.0) - (scale.y(1.0) - scale.y(10.0))).abs() < 1e-9);
    let mut flat = chart(1.0);
    flat.series.clear();
    assert_eq!(ticks(&flat).1.len(), 2, "a chart without values has an axis, too");
}

#[test]
fn numbers_are_drawn_to_scale() {
    let points = [0.0, 1.0, 10.0, 50.0, 51.0].map(|x| Mark { x, y: 2.0, half: 0.0 });
    let series = Series { name: "a".into(), points: points.into(), reference: false };
    let delays = Chart { x: Axis::Numbers, series: vec![series], ..chart(4.0) };
    let (scale, _) = ticks(&delays);
    let x = |value| scale.x(value);
    assert!(((x(50.0) - x(0.0)) / (x(10.0) - x(0.0)) - 5.0).abs() < 1e-9);
    let shown: Vec<&str> = scale.x_ticks().iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(shown, ["0", "10", "50"], "the others would lie on them");
    let powers = Chart { x: Axis::Logarithmic, ..delays };
    let (scale, _) = ticks(&powers);
    assert!((scale.x(10.0) - scale.x(1.0)) / (scale.x(50.0) - scale.x(10.0)) > 1.4);
    assert!(scale.x(0.0) >= scale.left(), "0 has no place, and is at the edge");
}

/// Without a style sheet, a converter of SVG sees colours, lines and areas.
#[test]
fn a_file_needs_no_style_sheet() {
    for kind in [Kind::Lines, Kind::Bars, Kind::Curves] {
        for size in [Size::Page, Size::Column] {
            let file = Chart { kind, ..chart(4.0) }.file(size);
            assert!(!file.contains("var(") && !file.contains("<style"), "{file}");
            assert!(file.contains("a &lt; b") && file.contains("color=\"#6b7280\""), "{file}");
            assert!(
                file.contains("stroke=\"#d5dae1\"") && file.contains("stroke-dasharray=\"5 4\"")
            );
            assert!(!file.contains("NaN") && !file.contains("inf"), "{file}");
        }
    }
    let column = chart(4.0).file(Size::Column);
    assert!(column.contains("width=\"241pt\""), "{column}");
    let element = chart(4.0).element().into_string();
    // Two markers, and one in the legend.
    assert_eq!(element.matches("<circle").count(), 3);
    let bars = Chart { kind: Kind::Bars, ..chart(4.0) }.element().into_string();
    // Two bars and one in the legend; two expected values, one in the legend, and one interval.
    assert_eq!(bars.matches("<rect").count(), 3);
    assert_eq!(bars.matches("class=\"line\"").count(), 4, "{bars}");
}

/// In print without colours, six series differ.
#[test]
fn series_differ_without_colours() {
    let mut dashes = DASHES.to_vec();
    dashes.sort_unstable();
    dashes.dedup();
    let mut opacities = OPACITIES.map(|opacity| (opacity * 20.0) as u32).to_vec();
    opacities.sort_unstable();
    assert_eq!(dashes.len(), COLOURS.len());
    assert!(opacities.windows(2).all(|pair| pair[1] - pair[0] >= 3), "{opacities:?}");
}
