// Choices that come with the library, of layers that were measured on one of these GPUs, in the autotuner's
// format (tuner.h): where another algorithm or tiling is faster than what is estimated to be. Written by
// bench/ship_choices.py; three of an H200, whose estimated choice became another one, by what
// cuda_conv_bench had timed (kb71 forward in float32, kb78's input gradient in TF32 and dcgan2's weight
// gradient in bfloat16, the latter two with channels last). Those of an H100 were measured when a tile's
// images came one after another: the same name may mean other tiles of small images now.
// Without those of weight's gradients in nchw that pairs of columns (pair_grad_plan.h) compute sooner, as an
// H200 did.
// Of dcgan2 to dcgan4, vae1 and vae2 forward and input gradient were measured anew on an H200 when a block's
// only tile had no lead (box_choice.h) any more; kb69's of float32 by cuda_conv_bench --candidates. Of 1024
// images in a DCGAN's layers and 4096 in a VAE's, forward and input gradient in nchw: at 2e790d8.
#pragma once

#include <string_view>

namespace tapedeck {

inline constexpr std::string_view kShippedChoices =
    R"(tapedeck conv choices 1
NVIDIA H100 80GB HBM3	forward	bfloat16	highest	nchw	nchw	32 512 256 1 64 128 4 2 1 1 64 128 4 2 1 1	boxes 1.1.0.2.4.144.1.0.0	979.584	1076.224
NVIDIA H100 80GB HBM3	forward	bfloat16	highest	nhwc	nhwc	128 128 64 1 16 32 4 2 1 1 16 32 4 2 1 1	boxes 1.1.1.1.1.256.1.1.0	20.096	21.563
NVIDIA H100 80GB HBM3	forward	bfloat16	highest	nhwc	nhwc	128 256 128 1 8 16 4 2 1 1 8 16 4 2 1 1	boxes 1.1.2.1.0.256.2.0.0	17.227	20.832
NVIDIA H100 80GB HBM3	forward	bfloat16	highest	nhwc	nhwc	16 32 64 1 64 318 3 5 1 2 128 638 3 5 1 2	wgmma	172.832	267.904
NVIDIA H100 80GB HBM3	forward	bfloat16	highest	nhwc	nhwc	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	boxes 2.2.1.1.1.256.1.0.0	364.64	383.456
NVIDIA H100 80GB HBM3	forward	bfloat16	highest	nhwc	nhwc	8 32 32 1 512 514 3 1 0 1 1024 1026 3 1 0 1	boxes 2.2.0.1.0.256.1.0.0	207.264	249.792
NVIDIA H100 80GB HBM3	forward	float16	highest	nchw	nchw	32 512 256 1 64 128 4 2 1 1 64 128 4 2 1 1	boxes 1.1.0.2.4.144.2.0.0	1018.656	1121.984
NVIDIA H100 80GB HBM3	forward	float16	highest	nhwc	nhwc	128 128 64 1 16 32 4 2 1 1 16 32 4 2 1 1	boxes 1.1.1.1.1.256.1.1.0	20.236	21.424
NVIDIA H100 80GB HBM3	forward	float16	highest	nhwc	nhwc	128 256 128 1 8 16 4 2 1 1 8 16 4 2 1 1	boxes 1.1.2.1.1.256.2.0.0	18.453	67.04
NVIDIA H100 80GB HBM3	forward	float16	highest	nhwc	nhwc	16 32 64 1 64 318 3 5 1 2 128 638 3 5 1 2	wgmma	172.352	272.512
NVIDIA H100 80GB HBM3	forward	float16	highest	nhwc	nhwc	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	boxes 2.2.0.1.1.256.1.1.0	377.696	401.216
NVIDIA H100 80GB HBM3	forward	float16	highest	nhwc	nhwc	8 32 32 1 512 514 3 1 0 1 1024 1026 3 1 0 1	boxes 2.2.1.1.1.256.1.1.0	214.656	256.256
NVIDIA H100 80GB HBM3	forward	float16	highest	nhwc	nhwc	8 64 64 1 1024 1026 3 1 0 1 1024 1026 3 1 0 1	boxes 1.1.1.1.0.256.1.1.0	1155.36	1256.224
NVIDIA H100 80GB HBM3	forward	float32	high	nchw	nchw	128 256 128 1 8 16 4 2 1 1 8 16 4 2 1 1	halves 1.1.0.2.3.80.2.0.0	40.795	42.165
NVIDIA H100 80GB HBM3	forward	float32	high	nchw	nchw	128 64 32 1 14 28 3 2 1 1 14 28 3 2 1 1	boxes 1.2.0.1.5.224.1.1.0	21.224	22.429
NVIDIA H100 80GB HBM3	forward	float32	high	nchw	nchw	32 512 256 1 64 128 4 2 1 1 64 128 4 2 1 1	halves 1.1.1.1.2.192.2.0.0	1165.472	1248.704
NVIDIA H100 80GB HBM3	forward	float32	high	nchw	nchw	64 64 128 1 128 130 3 1 0 1 256 260 5 1 0 1	gathered 1.1.0.1.3.192.2.0.8	1125.056	1166.464
NVIDIA H100 80GB HBM3	forward	float32	high	nchw	nchw	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	gathered 2.2.0.1.5.240.1.0.12	603.392	625.824
NVIDIA H100 80GB HBM3	forward	float32	high	nchw	nchw	8 32 32 1 512 514 3 1 0 1 1024 1026 3 1 0 1	gathered 2.2.0.1.6.256.1.1.12	623.424	778.912
NVIDIA H100 80GB HBM3	forward	float32	high	nchw	nchw	8 64 64 1 1024 1026 3 1 0 1 1024 1026 3 1 0 1	gathered 1.1.0.1.3.256.1.1.8	2244.928	3245.6
NVIDIA H100 80GB HBM3	forward	float32	high	nhwc	nhwc	128 128 64 1 16 32 4 2 1 1 16 32 4 2 1 1	boxes 1.1.1.1.0.256.1.1.0	39.378	43.803
NVIDIA H100 80GB HBM3	forward	float32	high	nhwc	nhwc	128 256 128 1 8 16 4 2 1 1 8 16 4 2 1 1	halves 1.1.2.1.0.256.2.0.0	32	34.476
NVIDIA H100 80GB HBM3	forward	float32	high	nhwc	nhwc	128 64 32 1 14 28 3 2 1 1 14 28 3 2 1 1	boxes 1.2.1.1.0.208.1.1.0	16.983	69.28
NVIDIA H100 80GB HBM3	forward	float32	highest	nchw	nchw	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	gathered 2.2.0.1.5.96.1.0.4	1248.8	1327.264
NVIDIA H100 80GB HBM3	forward	float32	highest	nchw	nchw	8 32 32 1 512 514 3 1 0 1 1024 1026 3 1 0 1	gathered 2.2.0.1.6.128.1.0.8	987.712	1049.504
NVIDIA H100 80GB HBM3	forward	float32	highest	nchw	nchw	8 64 64 1 512 514 3 1 0 1 512 518 7 1 0 1	halves 1.1.1.1.2.96.1.0.0	2079.552	2470.464
NVIDIA H100 80GB HBM3	input_gradient	bfloat16	highest	nchw	nchw	128 512 256 1 4 8 4 2 1 1 4 8 4 2 1 1	boxes 1.1.1.1.3.160.1.1.0	31.796	34.092
NVIDIA H100 80GB HBM3	input_gradient	bfloat16	highest	nchw	nchw	8 32 32 1 512 514 3 1 0 1 1024 1026 3 1 0 1	gathered	414.176	474.528
NVIDIA H100 80GB HBM3	input_gradient	bfloat16	highest	nchw	nchw	8 64 64 1 1024 1026 3 1 0 1 1024 1026 3 1 0 1	gathered 1.1.0.1.3.256.1.1.8	1571.84	1830.304
NVIDIA H100 80GB HBM3	input_gradient	bfloat16	highest	nchw	nchw	8 64 64 1 512 514 3 1 0 1 512 518 7 1 0 1	gathered 1.1.0.1.3.208.1.1.8	604.16	651.552
NVIDIA H100 80GB HBM3	input_gradient	bfloat16	highest	nhwc	nhwc	128 512 256 1 4 8 4 2 1 1 4 8 4 2 1 1	boxes 1.1.0.1.0.208.1.1.0	23.628	25.741
NVIDIA H100 80GB HBM3	input_gradient	bfloat16	highest	nhwc	nhwc	8 32 32 1 512 514 3 1 0 1 1024 1026 3 1 0 1	boxes 2.2.1.1.1.256.1.1.0	203.392	257.056
NVIDIA H100 80GB HBM3	input_gradient	bfloat16	highest	nhwc	nhwc	8 64 64 1 1024 1026 3 1 0 1 1024 1026 3 1 0 1	boxes 1.1.0.1.1.256.1.1.0	1057.408	1113.248
NVIDIA H100 80GB HBM3	input_gradient	float16	highest	nchw	nchw	128 512 256 1 4 8 4 2 1 1 4 8 4 2 1 1	boxes 1.1.1.1.3.160.1.1.0	31.804	34.248
NVIDIA H100 80GB HBM3	input_gradient	float16	highest	nchw	nchw	128 64 64 1 7 14 3 2 1 1 7 14 3 2 1 1	boxes 1.1.0.1.2.64.1.1.0	11.893	12.541
NVIDIA H100 80GB HBM3	input_gradient	float16	highest	nchw	nchw	8 32 32 1 512 514 3 1 0 1 1024 1026 3 1 0 1	gathered	415.2	480.864
NVIDIA H100 80GB HBM3	input_gradient	float16	highest	nchw	nchw	8 64 64 1 1024 1026 3 1 0 1 1024 1026 3 1 0 1	gathered 1.1.0.1.3.256.1.1.12	1660.896	1909.344
NVIDIA H100 80GB HBM3	input_gradient	float16	highest	nchw	nchw	8 64 64 1 512 514 3 1 0 1 512 518 7 1 0 1	gathered 1.1.0.1.3.208.1.1.8	625.12	667.552
NVIDIA H100 80GB HBM3	input_gradient	float16	highest	nhwc	nhwc	128 512 256 1 4 8 4 2 1 1 4 8 4 2 1 1	boxes 1.1.1.1.0.160.1.1.0	23.75	132.8
NVIDIA H100 80GB HBM3	input_gradient	float16	highest	nhwc	nhwc	16 32 64 1 64 318 3 5 1 2 128 638 3 5 1 2	boxes 1.1.0.1.0.128.1.1.0	64.664	66.936
NVIDIA H100 80GB HBM3	input_gradient	float16	highest	nhwc	nhwc	8 32 32 1 512 514 3 1 0 1 1024 1026 3 1 0 1	boxes 2.2.1.1.1.256.1.1.0	209.152	245.6
NVIDIA H100 80GB HBM3	input_gradient	float16	highest	nhwc	nhwc	8 64 64 1 1024 1026 3 1 0 1 1024 1026 3 1 0 1	boxes 1.1.1.1.1.256.1.1.0	1128.64	1185.664
NVIDIA H100 80GB HBM3	input_gradient	float32	high	nchw	nchw	128 512 256 1 4 8 4 2 1 1 4 8 4 2 1 1	halves 1.1.1.1.3.160.1.1.0	39.429	42.213
NVIDIA H100 80GB HBM3	input_gradient	float32	high	nchw	nchw	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	gathered 2.2.0.1.5.240.1.0.12	606.048	628.256
NVIDIA H100 80GB HBM3	input_gradient	float32	high	nchw	nchw	8 32 32 1 512 514 3 1 0 1 1024 1026 3 1 0 1	gathered 2.2.0.1.5.256.1.0.12	586.336	639.936
NVIDIA H100 80GB HBM3	input_gradient	float32	high	nhwc	nhwc	128 256 128 1 8 16 4 2 1 1 8 16 4 2 1 1	boxes	31.704	37.312
NVIDIA H100 80GB HBM3	input_gradient	float32	high	nhwc	nhwc	16 32 64 1 64 318 3 5 1 2 128 638 3 5 1 2	boxes 1.1.0.1.0.256.1.1.0	117.056	123.648
NVIDIA H100 80GB HBM3	input_gradient	float32	high	nhwc	nhwc	8 64 64 1 1024 1026 3 1 0 1 1024 1026 3 1 0 1	boxes 1.1.0.1.0.224.1.1.0	1936.992	1997.856
NVIDIA H100 80GB HBM3	input_gradient	float32	highest	nchw	nchw	128 64 32 1 14 28 3 2 1 1 14 28 3 2 1 1	halves 1.1.0.1.3.128.1.0.0	27.876	29.586
NVIDIA H100 80GB HBM3	input_gradient	float32	highest	nchw	nchw	128 64 64 1 7 14 3 2 1 1 7 14 3 2 1 1	halves	20.603	21.544
NVIDIA H100 80GB HBM3	input_gradient	float32	highest	nchw	nchw	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	gathered 2.2.0.1.5.96.1.0.4	1249.984	1337.984
NVIDIA H100 80GB HBM3	input_gradient	float32	highest	nchw	nchw	8 64 64 1 512 514 3 1 0 1 512 518 7 1 0 1	halves 1.1.1.1.2.128.1.0.0	1952.032	2043.168
NVIDIA H100 80GB HBM3	weight_gradient	bfloat16	highest	nchw	nchw	128 64 64 1 7 14 3 2 1 1 7 14 3 2 1 1	boxes	13.902	14.75
NVIDIA H100 80GB HBM3	weight_gradient	bfloat16	highest	nhwc	nhwc	128 128 64 1 16 32 4 2 1 1 16 32 4 2 1 1	boxes 1.1.1.1.16.16.17.0	22.848	24.256
NVIDIA H100 80GB HBM3	weight_gradient	bfloat16	highest	nhwc	nhwc	128 64 32 1 14 28 3 2 1 1 14 28 3 2 1 1	boxes 1.1.2.1.7.16.16.0	11.594	14.197
NVIDIA H100 80GB HBM3	weight_gradient	bfloat16	highest	nhwc	nhwc	16 32 64 1 64 318 3 5 1 2 128 638 3 5 1 2	boxes 1.1.1.1.2.128.128.0	61.992	73.408
NVIDIA H100 80GB HBM3	weight_gradient	bfloat16	highest	nhwc	nhwc	32 512 256 1 64 128 4 2 1 1 64 128 4 2 1 1	boxes 1.1.2.1.17.16.16.0	736.064	786.304
NVIDIA H100 80GB HBM3	weight_gradient	bfloat16	highest	nhwc	nhwc	64 64 128 1 128 130 3 1 0 1 256 260 5 1 0 1	boxes 1.1.2.1.13.16.16.0	717.152	804.928
NVIDIA H100 80GB HBM3	weight_gradient	bfloat16	highest	nhwc	nhwc	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	boxes 2.2.2.1.10.16.16.0	362.464	438.72
NVIDIA H100 80GB HBM3	weight_gradient	float16	highest	nchw	nchw	128 64 64 1 7 14 3 2 1 1 7 14 3 2 1 1	boxes	13.984	14.682
NVIDIA H100 80GB HBM3	weight_gradient	float16	highest	nhwc	nhwc	128 128 64 1 16 32 4 2 1 1 16 32 4 2 1 1	boxes 1.1.1.1.16.16.17.0	22.864	24.416
NVIDIA H100 80GB HBM3	weight_gradient	float16	highest	nhwc	nhwc	128 64 32 1 14 28 3 2 1 1 14 28 3 2 1 1	boxes 1.2.2.1.7.16.16.0	12.258	229.376
NVIDIA H100 80GB HBM3	weight_gradient	float16	highest	nhwc	nhwc	16 32 64 1 64 318 3 5 1 2 128 638 3 5 1 2	boxes 1.1.1.1.2.128.128.0	61.744	73.328
NVIDIA H100 80GB HBM3	weight_gradient	float16	highest	nhwc	nhwc	32 512 256 1 64 128 4 2 1 1 64 128 4 2 1 1	boxes 1.1.2.1.13.16.16.0	766.848	803.616
NVIDIA H100 80GB HBM3	weight_gradient	float16	highest	nhwc	nhwc	64 64 128 1 128 130 3 1 0 1 256 260 5 1 0 1	boxes 1.1.2.1.10.16.16.0	746.016	806.112
NVIDIA H100 80GB HBM3	weight_gradient	float16	highest	nhwc	nhwc	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	boxes 2.2.2.1.10.16.16.0	376.512	445.824
NVIDIA H100 80GB HBM3	weight_gradient	float32	high	nchw	nchw	64 64 128 1 128 130 3 1 0 1 256 260 5 1 0 1	halves 1.1.2.1.16.16.16.0	1581.12	1641.6
NVIDIA H100 80GB HBM3	weight_gradient	float32	high	nchw	nchw	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	halves 2.2.2.1.12.16.16.0	931.552	988.576
NVIDIA H100 80GB HBM3	weight_gradient	float32	high	nhwc	nhwc	64 64 128 1 128 130 3 1 0 1 256 260 5 1 0 1	halves 1.1.2.1.16.16.16.0	1561.6	1617.632
NVIDIA H100 80GB HBM3	weight_gradient	float32	high	nhwc	nhwc	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	halves 2.2.2.1.12.16.16.0	911.328	969.056
NVIDIA H100 80GB HBM3	weight_gradient	float32	highest	nchw	nchw	128 128 64 1 16 32 4 2 1 1 16 32 4 2 1 1	halves 1.1.1.1.4.16.16.0	89.088	92.661
NVIDIA H100 80GB HBM3	weight_gradient	float32	highest	nchw	nchw	32 512 256 1 64 128 4 2 1 1 64 128 4 2 1 1	halves 1.1.1.1.8.16.16.0	2852.8	3226.752
NVIDIA H100 80GB HBM3	weight_gradient	float32	highest	nchw	nchw	8 32 32 1 512 514 3 1 0 1 1024 1026 3 1 0 1	halves 2.2.1.1.12.16.16.0	1230.688	1416.928
NVIDIA H100 80GB HBM3	weight_gradient	float32	highest	nchw	nchw	8 64 64 1 1024 1026 3 1 0 1 1024 1026 3 1 0 1	halves 1.1.1.1.8.16.16.0	5679.232	6301.984
NVIDIA H100 80GB HBM3	weight_gradient	float32	highest	nchw	nchw	8 64 64 1 512 514 3 1 0 1 512 518 7 1 0 1	halves 1.1.2.1.8.16.16.0	2432.16	2791.296
NVIDIA H200	forward	bfloat16	highest	nchw	nchw	1024 256 128 1 8 16 4 2 1 1 8 16 4 2 1 1	wgmma	137.504	165.824
NVIDIA H200	forward	bfloat16	highest	nchw	nchw	128 256 128 1 8 16 4 2 1 1 8 16 4 2 1 1	boxes 1.1.1.1.7.128.2.0.0	25.171	26.08
NVIDIA H200	forward	bfloat16	highest	nchw	nchw	32 512 256 1 64 128 4 2 1 1 64 128 4 2 1 1	boxes 1.1.0.2.4.144.1.0.0	860.576	971.744
NVIDIA H200	forward	bfloat16	highest	nchw	nchw	4096 64 32 1 14 28 3 2 1 1 14 28 3 2 1 1	boxes 1.2.0.1.6.240.1.1.0	326.976	370.4
NVIDIA H200	forward	bfloat16	highest	nhwc	nhwc	128 512 256 1 4 8 4 2 1 1 4 8 4 2 1 1	boxes 1.1.1.1.0.128.1.0.0	16.108	17.762
NVIDIA H200	forward	bfloat16	highest	nhwc	nhwc	16 32 64 1 64 318 3 5 1 2 128 638 3 5 1 2	wgmma	170.56	229.536
NVIDIA H200	forward	bfloat16	highest	nhwc	nhwc	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	boxes 2.2.1.1.1.256.1.0.0	340.256	356.992
NVIDIA H200	forward	bfloat16	highest	nhwc	nhwc	8 32 32 1 512 514 3 1 0 1 1024 1026 3 1 0 1	boxes 2.2.1.1.1.240.1.1.0	205.92	230.144
NVIDIA H200	forward	float16	highest	nchw	nchw	128 128 64 1 16 32 4 2 1 1 16 32 4 2 1 1	boxes 1.1.0.2.3.144.1.0.0	30.258	32.552
NVIDIA H200	forward	float16	highest	nchw	nchw	128 256 128 1 8 16 4 2 1 1 8 16 4 2 1 1	boxes 1.1.1.1.7.128.2.0.0	26.48	27.612
NVIDIA H200	forward	float16	highest	nchw	nchw	32 512 256 1 64 128 4 2 1 1 64 128 4 2 1 1	boxes 1.1.0.2.4.144.1.0.0	886.944	1000.416
NVIDIA H200	forward	float16	highest	nhwc	nhwc	128 512 256 1 4 8 4 2 1 1 4 8 4 2 1 1	boxes 1.1.1.1.1.256.1.1.0	17.199	18.919
NVIDIA H200	forward	float16	highest	nhwc	nhwc	128 64 64 1 7 14 3 2 1 1 7 14 3 2 1 1	boxes 1.1.0.1.0.128.1.1.0	6.602	6.874
NVIDIA H200	forward	float16	highest	nhwc	nhwc	16 32 64 1 64 318 3 5 1 2 128 638 3 5 1 2	wgmma	171.584	229.76
NVIDIA H200	forward	float16	highest	nhwc	nhwc	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	boxes 2.2.1.1.1.256.1.0.0	347.168	363.264
NVIDIA H200	forward	float16	highest	nhwc	nhwc	8 32 32 1 512 514 3 1 0 1 1024 1026 3 1 0 1	boxes 2.2.0.1.0.240.1.0.0	205.888	234.432
NVIDIA H200	forward	float32	high	nchw	nchw	1024 256 128 1 8 16 4 2 1 1 8 16 4 2 1 1	halves 1.1.1.1.7.128.2.0.0	181.952	243.648
NVIDIA H200	forward	float32	high	nchw	nchw	1024 512 256 1 4 8 4 2 1 1 4 8 4 2 1 1	halves 1.1.1.1.7.160.2.0.0	158.912	229.728
NVIDIA H200	forward	float32	high	nchw	nchw	128 128 64 1 16 32 4 2 1 1 16 32 4 2 1 1	halves 1.1.0.1.7.160.1.0.0	43.413	45.557
NVIDIA H200	forward	float32	high	nchw	nchw	128 256 128 1 8 16 4 2 1 1 8 16 4 2 1 1	halves 1.1.1.1.7.128.2.0.0	33.38	36.864
NVIDIA H200	forward	float32	high	nchw	nchw	32 512 256 1 64 128 4 2 1 1 64 128 4 2 1 1	halves 1.1.0.2.3.144.1.0.0	998.752	1086.208
NVIDIA H200	forward	float32	high	nchw	nchw	8 32 32 1 512 514 3 1 0 1 1024 1026 3 1 0 1	halves 2.2.1.1.6.224.1.0.0	503.648	579.104
NVIDIA H200	forward	float32	high	nchw	nchw	8 64 64 1 1024 1026 3 1 0 1 1024 1026 3 1 0 1	halves 1.1.0.1.3.256.1.1.0	2010.144	2291.104
NVIDIA H200	forward	float32	high	nhwc	nhwc	128 128 64 1 16 32 4 2 1 1 16 32 4 2 1 1	boxes 1.1.1.1.0.256.1.1.0	34.668	39.369
NVIDIA H200	forward	float32	high	nhwc	nhwc	128 512 256 1 4 8 4 2 1 1 4 8 4 2 1 1	halves 1.1.1.1.0.128.2.0.0	30.062	31.833
NVIDIA H200	forward	float32	high	nhwc	nhwc	16 32 64 1 64 318 3 5 1 2 128 638 3 5 1 2	halves	252	260.64
NVIDIA H200	forward	float32	high	nhwc	nhwc	8 32 32 1 512 514 3 1 0 1 1024 1026 3 1 0 1	boxes 2.2.0.1.0.224.1.1.0	364.8	377.792
NVIDIA H200	forward	float32	highest	nchw	nchw	64 64 128 1 128 130 3 1 0 1 256 260 5 1 0 1	gathered	2646	2698
NVIDIA H200	forward	float32	highest	nchw	nchw	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	gathered 2.2.0.1.5.128.1.0.4	1161.12	1220.224
NVIDIA H200	forward	float32	highest	nchw	nchw	8 32 32 1 512 514 3 1 0 1 1024 1026 3 1 0 1	halves 2.2.0.1.6.96.1.0.0	845.4	937
NVIDIA H200	forward	float32	highest	nchw	nchw	8 64 64 1 512 514 3 1 0 1 512 518 7 1 0 1	halves 1.1.1.1.3.128.1.0.0	1870.944	2104.64
NVIDIA H200	input_gradient	bfloat16	highest	nchw	nchw	128 256 128 1 8 16 4 2 1 1 8 16 4 2 1 1	boxes 1.1.1.1.3.128.2.0.0	23.247	25.763
NVIDIA H200	input_gradient	bfloat16	highest	nchw	nchw	128 512 256 1 4 8 4 2 1 1 4 8 4 2 1 1	boxes 1.1.1.1.3.128.1.1.0	29.124	31.852
NVIDIA H200	input_gradient	bfloat16	highest	nchw	nchw	4096 64 32 1 14 28 3 2 1 1 14 28 3 2 1 1	boxes 1.2.0.1.3.256.1.0.0	221.12	236.352
NVIDIA H200	input_gradient	bfloat16	highest	nchw	nchw	4096 64 64 1 7 14 3 2 1 1 7 14 3 2 1 1	boxes 1.1.1.1.2.160.1.1.0	109.568	124.848
NVIDIA H200	input_gradient	bfloat16	highest	nchw	nchw	8 32 32 1 512 514 3 1 0 1 1024 1026 3 1 0 1	boxes 2.2.1.1.5.224.1.0.0	390.4	418.56
NVIDIA H200	input_gradient	bfloat16	highest	nchw	nchw	8 64 64 1 1024 1026 3 1 0 1 1024 1026 3 1 0 1	gathered 1.1.0.1.3.256.1.1.8	1416.672	1660.544
NVIDIA H200	input_gradient	bfloat16	highest	nchw	nchw	8 64 64 1 512 514 3 1 0 1 512 518 7 1 0 1	gathered 1.1.0.1.3.224.1.1.8	566.464	606.496
NVIDIA H200	input_gradient	bfloat16	highest	nhwc	nhwc	128 256 128 1 8 16 4 2 1 1 8 16 4 2 1 1	boxes 1.1.1.1.0.128.1.0.0	15.528	17.296
NVIDIA H200	input_gradient	bfloat16	highest	nhwc	nhwc	16 32 64 1 64 318 3 5 1 2 128 638 3 5 1 2	boxes 1.1.0.1.0.256.1.1.0	46.352	49.824
NVIDIA H200	input_gradient	bfloat16	highest	nhwc	nhwc	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	boxes 2.2.1.1.1.256.1.0.0	341.952	356.864
NVIDIA H200	input_gradient	bfloat16	highest	nhwc	nhwc	8 32 32 1 512 514 3 1 0 1 1024 1026 3 1 0 1	boxes 2.2.1.1.1.256.1.1.0	196.576	231.072
NVIDIA H200	input_gradient	float16	highest	nchw	nchw	128 256 128 1 8 16 4 2 1 1 8 16 4 2 1 1	boxes 1.1.1.1.3.128.2.0.0	26.211	27.865
NVIDIA H200	input_gradient	float16	highest	nchw	nchw	128 512 256 1 4 8 4 2 1 1 4 8 4 2 1 1	boxes 1.1.1.1.3.128.1.1.0	30.059	33.084
NVIDIA H200	input_gradient	float16	highest	nchw	nchw	8 32 32 1 512 514 3 1 0 1 1024 1026 3 1 0 1	boxes 2.2.1.1.5.240.1.0.0	395.392	426.848
NVIDIA H200	input_gradient	float16	highest	nchw	nchw	8 64 64 1 1024 1026 3 1 0 1 1024 1026 3 1 0 1	gathered 1.1.0.1.3.256.1.1.8	1478.688	1731.072
NVIDIA H200	input_gradient	float16	highest	nchw	nchw	8 64 64 1 512 514 3 1 0 1 512 518 7 1 0 1	gathered 1.1.0.1.3.224.1.1.8	583.072	626.368
NVIDIA H200	input_gradient	float16	highest	nhwc	nhwc	128 256 128 1 8 16 4 2 1 1 8 16 4 2 1 1	boxes 1.1.1.1.0.256.1.1.0	16.93	18.555
NVIDIA H200	input_gradient	float16	highest	nhwc	nhwc	128 64 32 1 14 28 3 2 1 1 14 28 3 2 1 1	boxes 1.1.0.1.0.224.1.1.0	9.347	9.707
NVIDIA H200	input_gradient	float16	highest	nhwc	nhwc	16 32 64 1 64 318 3 5 1 2 128 638 3 5 1 2	boxes 1.1.0.1.0.256.1.1.0	46.32	50.048
NVIDIA H200	input_gradient	float16	highest	nhwc	nhwc	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	boxes 2.2.1.1.1.256.1.0.0	345.952	364.64
NVIDIA H200	input_gradient	float16	highest	nhwc	nhwc	8 32 32 1 512 514 3 1 0 1 1024 1026 3 1 0 1	boxes 2.2.1.1.1.256.1.1.0	199.552	233.728
NVIDIA H200	input_gradient	float32	high	nchw	nchw	1024 512 256 1 4 8 4 2 1 1 4 8 4 2 1 1	halves 1.1.1.1.2.256.1.1.0	168.704	203.936
NVIDIA H200	input_gradient	float32	high	nchw	nchw	128 256 128 1 8 16 4 2 1 1 8 16 4 2 1 1	halves 1.1.1.1.3.128.2.0.0	32.516	34.728
NVIDIA H200	input_gradient	float32	high	nchw	nchw	128 512 256 1 4 8 4 2 1 1 4 8 4 2 1 1	halves 1.1.0.1.2.160.1.1.0	36.379	38.213
NVIDIA H200	input_gradient	float32	high	nchw	nchw	32 512 256 1 64 128 4 2 1 1 64 128 4 2 1 1	halves 1.1.1.1.2.208.2.0.0	991.264	1031.968
NVIDIA H200	input_gradient	float32	high	nchw	nchw	4096 64 32 1 14 28 3 2 1 1 14 28 3 2 1 1	halves 1.2.0.1.3.256.1.0.0	310.4	335.616
NVIDIA H200	input_gradient	float32	high	nchw	nchw	4096 64 64 1 7 14 3 2 1 1 7 14 3 2 1 1	halves 1.1.1.1.2.160.1.1.0	153.664	199.104
NVIDIA H200	input_gradient	float32	high	nchw	nchw	8 64 64 1 1024 1026 3 1 0 1 1024 1026 3 1 0 1	halves 1.1.1.1.3.256.1.0.0	2009.344	2171.104
NVIDIA H200	input_gradient	float32	high	nhwc	nhwc	128 256 128 1 8 16 4 2 1 1 8 16 4 2 1 1	boxes 1.1.1.1.0.128.1.0.0	25.958	29.739
NVIDIA H200	input_gradient	float32	high	nhwc	nhwc	16 32 64 1 64 318 3 5 1 2 128 638 3 5 1 2	boxes 1.1.0.1.0.256.1.1.0	85.408	92.277
NVIDIA H200	input_gradient	float32	high	nhwc	nhwc	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	halves	613.7	678
NVIDIA H200	input_gradient	float32	high	nhwc	nhwc	8 64 64 1 1024 1026 3 1 0 1 1024 1026 3 1 0 1	boxes 1.1.0.1.0.256.1.1.0	1802.56	1873.28
NVIDIA H200	input_gradient	float32	highest	nchw	nchw	128 512 256 1 4 8 4 2 1 1 4 8 4 2 1 1	halves 1.1.1.1.3.64.1.0.0	60.728	65.944
NVIDIA H200	input_gradient	float32	highest	nchw	nchw	64 64 128 1 128 130 3 1 0 1 256 260 5 1 0 1	gathered	2483	2724
NVIDIA H200	input_gradient	float32	highest	nchw	nchw	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	gathered 2.2.0.1.5.128.1.0.4	1165.28	1225.984
NVIDIA H200	weight_gradient	bfloat16	highest	nchw	nchw	128 64 64 1 7 14 3 2 1 1 7 14 3 2 1 1	boxes 1.1.1.2.7.7.8.0	12.495	14.573
NVIDIA H200	weight_gradient	bfloat16	highest	nhwc	nhwc	128 128 64 1 16 32 4 2 1 1 16 32 4 2 1 1	boxes 1.1.1.1.8.16.16.0	21.467	22.705
NVIDIA H200	weight_gradient	bfloat16	highest	nhwc	nhwc	128 256 128 1 8 16 4 2 1 1 8 16 4 2 1 1	boxes 1.1.1.4.8.8.9.0	22.147	23.284
NVIDIA H200	weight_gradient	bfloat16	highest	nhwc	nhwc	128 512 256 1 4 8 4 2 1 1 4 8 4 2 1 1	boxes 1.1.2.8.4.4.4.1	19.2	20.2
NVIDIA H200	weight_gradient	bfloat16	highest	nhwc	nhwc	128 64 32 1 14 28 3 2 1 1 14 28 3 2 1 1	boxes 1.1.2.1.7.14.16.0	11.002	11.538
NVIDIA H200	weight_gradient	bfloat16	highest	nhwc	nhwc	16 32 64 1 64 318 3 5 1 2 128 638 3 5 1 2	boxes 1.1.1.1.2.128.128.0	45.787	53.542
NVIDIA H200	weight_gradient	bfloat16	highest	nhwc	nhwc	32 512 256 1 64 128 4 2 1 1 64 128 4 2 1 1	boxes 1.1.2.1.16.16.16.0	668.64	697.248
NVIDIA H200	weight_gradient	bfloat16	highest	nhwc	nhwc	64 64 128 1 128 130 3 1 0 1 256 260 5 1 0 1	boxes 1.1.2.1.16.16.16.0	644.064	709.856
NVIDIA H200	weight_gradient	bfloat16	highest	nhwc	nhwc	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	boxes 2.2.2.1.16.16.16.0	336.32	380.928
NVIDIA H200	weight_gradient	float16	highest	nchw	nchw	128 64 32 1 14 28 3 2 1 1 14 28 3 2 1 1	boxes 1.1.2.1.7.14.16.0	18.062	18.663
NVIDIA H200	weight_gradient	float16	highest	nchw	nchw	128 64 64 1 7 14 3 2 1 1 7 14 3 2 1 1	boxes 1.1.1.2.7.7.8.0	12.539	14.575
NVIDIA H200	weight_gradient	float16	highest	nhwc	nhwc	128 128 64 1 16 32 4 2 1 1 16 32 4 2 1 1	boxes 1.1.1.1.8.16.16.0	21.754	22.86
NVIDIA H200	weight_gradient	float16	highest	nhwc	nhwc	128 256 128 1 8 16 4 2 1 1 8 16 4 2 1 1	boxes 1.1.1.4.8.8.9.0	22.163	23.462
NVIDIA H200	weight_gradient	float16	highest	nhwc	nhwc	128 64 32 1 14 28 3 2 1 1 14 28 3 2 1 1	boxes 1.1.2.1.7.14.16.0	10.989	11.467
NVIDIA H200	weight_gradient	float16	highest	nhwc	nhwc	16 32 64 1 64 318 3 5 1 2 128 638 3 5 1 2	boxes 1.1.1.1.2.128.128.0	45.877	53.459
NVIDIA H200	weight_gradient	float16	highest	nhwc	nhwc	32 512 256 1 64 128 4 2 1 1 64 128 4 2 1 1	boxes 1.1.2.1.16.16.16.0	690.56	721.024
NVIDIA H200	weight_gradient	float16	highest	nhwc	nhwc	64 64 128 1 128 130 3 1 0 1 256 260 5 1 0 1	boxes 1.1.2.1.16.16.16.0	668.224	739.872
NVIDIA H200	weight_gradient	float16	highest	nhwc	nhwc	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	boxes 2.2.2.1.16.16.16.0	347.2	391.424
NVIDIA H200	weight_gradient	float32	high	nchw	nchw	64 64 128 1 128 130 3 1 0 1 256 260 5 1 0 1	halves 1.1.2.1.16.16.16.0	1339.232	1392.736
NVIDIA H200	weight_gradient	float32	high	nchw	nchw	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	halves 2.2.2.1.16.16.16.0	773.472	990.528
NVIDIA H200	weight_gradient	float32	high	nhwc	nhwc	128 128 64 1 16 32 4 2 1 1 16 32 4 2 1 1	halves 1.1.1.1.8.16.16.0	54.906	56.87
NVIDIA H200	weight_gradient	float32	high	nhwc	nhwc	64 64 128 1 128 130 3 1 0 1 256 260 5 1 0 1	halves 1.1.2.1.16.16.16.0	1340.352	1392.576
NVIDIA H200	weight_gradient	float32	high	nhwc	nhwc	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	halves 2.2.2.1.16.16.16.0	771.584	822.144
NVIDIA H200	weight_gradient	float32	highest	nchw	nchw	32 512 256 1 64 128 4 2 1 1 64 128 4 2 1 1	halves 1.1.2.1.4.16.16.0	2529.728	2866.08
NVIDIA H200	weight_gradient	float32	highest	nchw	nchw	8 32 32 1 512 514 3 1 0 1 1024 1026 3 1 0 1	halves 2.2.1.1.12.16.16.0	1043.488	1145.664
NVIDIA H200	weight_gradient	float32	highest	nchw	nchw	8 64 64 1 1024 1026 3 1 0 1 1024 1026 3 1 0 1	halves 1.1.1.1.12.16.16.0	5172.096	5559.712
NVIDIA H200	weight_gradient	float32	highest	nchw	nchw	8 64 64 1 512 514 3 1 0 1 512 518 7 1 0 1	halves 2.2.2.1.7.16.16.0	2189.248	2441.632
)";

}  // namespace tapedeck
