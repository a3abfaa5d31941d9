// Choices that come with the library, of layers that were measured on one of these GPUs, in the autotuner's
// format (tuner.h): where another algorithm or tiling is faster than what is estimated to be. Written by
// bench/ship_choices.py.
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
NVIDIA H100 80GB HBM3	weight_gradient	bfloat16	highest	nhwc	nhwc	128 64 64 1 7 14 3 2 1 1 7 14 3 2 1 1	boxes 1.1.1.3.7.7.8.0	9.277	11.574
NVIDIA H100 80GB HBM3	weight_gradient	bfloat16	highest	nhwc	nhwc	16 32 64 1 64 318 3 5 1 2 128 638 3 5 1 2	boxes 1.1.1.1.2.128.128.0	61.992	73.408
NVIDIA H100 80GB HBM3	weight_gradient	bfloat16	highest	nhwc	nhwc	32 512 256 1 64 128 4 2 1 1 64 128 4 2 1 1	boxes 1.1.2.1.17.16.16.0	736.064	786.304
NVIDIA H100 80GB HBM3	weight_gradient	bfloat16	highest	nhwc	nhwc	64 64 128 1 128 130 3 1 0 1 256 260 5 1 0 1	boxes 1.1.2.1.13.16.16.0	717.152	804.928
NVIDIA H100 80GB HBM3	weight_gradient	bfloat16	highest	nhwc	nhwc	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	boxes 2.2.2.1.10.16.16.0	362.464	438.72
NVIDIA H100 80GB HBM3	weight_gradient	float16	highest	nchw	nchw	128 64 64 1 7 14 3 2 1 1 7 14 3 2 1 1	boxes	13.984	14.682
NVIDIA H100 80GB HBM3	weight_gradient	float16	highest	nhwc	nhwc	128 128 64 1 16 32 4 2 1 1 16 32 4 2 1 1	boxes 1.1.1.1.16.16.17.0	22.864	24.416
NVIDIA H100 80GB HBM3	weight_gradient	float16	highest	nhwc	nhwc	128 64 32 1 14 28 3 2 1 1 14 28 3 2 1 1	boxes 1.2.2.1.7.16.16.0	12.258	229.376
NVIDIA H100 80GB HBM3	weight_gradient	float16	highest	nhwc	nhwc	128 64 64 1 7 14 3 2 1 1 7 14 3 2 1 1	boxes 1.1.1.3.7.7.8.0	9.368	11.571
NVIDIA H100 80GB HBM3	weight_gradient	float16	highest	nhwc	nhwc	16 32 64 1 64 318 3 5 1 2 128 638 3 5 1 2	boxes 1.1.1.1.2.128.128.0	61.744	73.328
NVIDIA H100 80GB HBM3	weight_gradient	float16	highest	nhwc	nhwc	32 512 256 1 64 128 4 2 1 1 64 128 4 2 1 1	boxes 1.1.2.1.13.16.16.0	766.848	803.616
NVIDIA H100 80GB HBM3	weight_gradient	float16	highest	nhwc	nhwc	64 64 128 1 128 130 3 1 0 1 256 260 5 1 0 1	boxes 1.1.2.1.10.16.16.0	746.016	806.112
NVIDIA H100 80GB HBM3	weight_gradient	float16	highest	nhwc	nhwc	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	boxes 2.2.2.1.10.16.16.0	376.512	445.824
NVIDIA H100 80GB HBM3	weight_gradient	float32	high	nchw	nchw	128 64 32 1 14 28 3 2 1 1 14 28 3 2 1 1	halves 1.1.2.1.7.16.16.0	29.095	30.855
NVIDIA H100 80GB HBM3	weight_gradient	float32	high	nchw	nchw	64 64 128 1 128 130 3 1 0 1 256 260 5 1 0 1	halves 1.1.2.1.16.16.16.0	1581.12	1641.6
NVIDIA H100 80GB HBM3	weight_gradient	float32	high	nchw	nchw	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	halves 2.2.2.1.12.16.16.0	931.552	988.576
NVIDIA H100 80GB HBM3	weight_gradient	float32	high	nhwc	nhwc	64 64 128 1 128 130 3 1 0 1 256 260 5 1 0 1	halves 1.1.2.1.16.16.16.0	1561.6	1617.632
NVIDIA H100 80GB HBM3	weight_gradient	float32	high	nhwc	nhwc	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	halves 2.2.2.1.12.16.16.0	911.328	969.056
NVIDIA H100 80GB HBM3	weight_gradient	float32	highest	nchw	nchw	128 128 64 1 16 32 4 2 1 1 16 32 4 2 1 1	halves 1.1.1.1.4.16.16.0	89.088	92.661
NVIDIA H100 80GB HBM3	weight_gradient	float32	highest	nchw	nchw	32 512 256 1 64 128 4 2 1 1 64 128 4 2 1 1	halves 1.1.1.1.8.16.16.0	2852.8	3226.752
NVIDIA H100 80GB HBM3	weight_gradient	float32	highest	nchw	nchw	8 32 32 1 512 514 3 1 0 1 1024 1026 3 1 0 1	halves 2.2.1.1.12.16.16.0	1230.688	1416.928
NVIDIA H100 80GB HBM3	weight_gradient	float32	highest	nchw	nchw	8 64 64 1 1024 1026 3 1 0 1 1024 1026 3 1 0 1	halves 1.1.1.1.8.16.16.0	5679.232	6301.984
NVIDIA H100 80GB HBM3	weight_gradient	float32	highest	nchw	nchw	8 64 64 1 512 514 3 1 0 1 512 518 7 1 0 1	halves 1.1.2.1.8.16.16.0	2432.16	2791.296
NVIDIA H200	forward	bfloat16	highest	nchw	nchw	32 512 256 1 64 128 4 2 1 1 64 128 4 2 1 1	boxes 1.1.0.2.4.144.1.0.0	873.28	961.632
NVIDIA H200	forward	bfloat16	highest	nhwc	nhwc	128 128 64 1 16 32 4 2 1 1 16 32 4 2 1 1	boxes 1.1.1.1.1.256.1.1.0	19.852	20.819
NVIDIA H200	forward	bfloat16	highest	nhwc	nhwc	128 256 128 1 8 16 4 2 1 1 8 16 4 2 1 1	boxes 1.1.2.1.0.256.2.0.0	17.079	20.859
NVIDIA H200	forward	bfloat16	highest	nhwc	nhwc	16 32 64 1 64 318 3 5 1 2 128 638 3 5 1 2	wgmma	174.816	229.984
NVIDIA H200	forward	bfloat16	highest	nhwc	nhwc	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	boxes 2.2.1.1.1.256.1.0.0	342.464	358.56
NVIDIA H200	forward	bfloat16	highest	nhwc	nhwc	8 32 32 1 512 514 3 1 0 1 1024 1026 3 1 0 1	boxes 2.2.0.1.0.256.1.0.0	202.048	233.44
NVIDIA H200	forward	float16	highest	nchw	nchw	32 512 256 1 64 128 4 2 1 1 64 128 4 2 1 1	boxes 1.1.0.2.4.144.1.0.0	894.048	988.128
NVIDIA H200	forward	float16	highest	nhwc	nhwc	128 128 64 1 16 32 4 2 1 1 16 32 4 2 1 1	boxes 1.1.1.1.1.256.1.1.0	20.303	21.003
NVIDIA H200	forward	float16	highest	nhwc	nhwc	128 256 128 1 8 16 4 2 1 1 8 16 4 2 1 1	boxes 1.1.2.1.0.256.2.0.0	17.273	21.061
NVIDIA H200	forward	float16	highest	nhwc	nhwc	16 32 64 1 64 318 3 5 1 2 128 638 3 5 1 2	wgmma	174.592	236.096
NVIDIA H200	forward	float16	highest	nhwc	nhwc	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	boxes 2.2.1.1.1.256.1.0.0	349.984	364.896
NVIDIA H200	forward	float16	highest	nhwc	nhwc	8 32 32 1 512 514 3 1 0 1 1024 1026 3 1 0 1	boxes 2.2.0.1.0.256.1.0.0	206.624	236.288
NVIDIA H200	forward	float32	high	nchw	nchw	128 64 32 1 14 28 3 2 1 1 14 28 3 2 1 1	boxes 1.2.0.1.5.224.1.1.0	20.529	21.555
NVIDIA H200	forward	float32	high	nchw	nchw	32 512 256 1 64 128 4 2 1 1 64 128 4 2 1 1	halves 1.1.0.2.3.144.1.0.0	1009.184	1073.664
NVIDIA H200	forward	float32	high	nchw	nchw	8 32 32 1 512 514 3 1 0 1 1024 1026 3 1 0 1	halves 2.2.1.1.6.208.1.0.0	515.232	598.272
NVIDIA H200	forward	float32	high	nchw	nchw	8 64 64 1 1024 1026 3 1 0 1 1024 1026 3 1 0 1	halves 1.1.0.1.3.192.1.1.0	2092.32	2444.224
NVIDIA H200	forward	float32	high	nhwc	nhwc	128 128 64 1 16 32 4 2 1 1 16 32 4 2 1 1	boxes 1.1.1.1.0.256.1.1.0	38.606	40.494
NVIDIA H200	forward	float32	high	nhwc	nhwc	128 256 128 1 8 16 4 2 1 1 8 16 4 2 1 1	halves 1.1.2.1.0.256.2.0.0	29.796	33.028
NVIDIA H200	forward	float32	high	nhwc	nhwc	128 64 32 1 14 28 3 2 1 1 14 28 3 2 1 1	boxes 1.2.1.1.0.208.1.0.0	16.226	18.418
NVIDIA H200	forward	float32	highest	nchw	nchw	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	gathered 2.2.0.1.5.128.1.0.4	1153.024	1214.272
NVIDIA H200	forward	float32	highest	nchw	nchw	8 64 64 1 512 514 3 1 0 1 512 518 7 1 0 1	halves 1.1.1.1.3.128.1.0.0	1854.112	2081.504
NVIDIA H200	input_gradient	bfloat16	highest	nchw	nchw	128 512 256 1 4 8 4 2 1 1 4 8 4 2 1 1	boxes 1.1.1.1.3.160.1.1.0	31.648	34
NVIDIA H200	input_gradient	bfloat16	highest	nchw	nchw	128 64 64 1 7 14 3 2 1 1 7 14 3 2 1 1	boxes 1.1.0.1.2.64.1.1.0	11.829	12.363
NVIDIA H200	input_gradient	bfloat16	highest	nchw	nchw	8 32 32 1 512 514 3 1 0 1 1024 1026 3 1 0 1	boxes 2.2.1.1.5.224.1.0.0	391.52	418.944
NVIDIA H200	input_gradient	bfloat16	highest	nchw	nchw	8 64 64 1 1024 1026 3 1 0 1 1024 1026 3 1 0 1	gathered 1.1.0.1.3.256.1.1.12	1418.752	1663.84
NVIDIA H200	input_gradient	bfloat16	highest	nchw	nchw	8 64 64 1 512 514 3 1 0 1 512 518 7 1 0 1	gathered 1.1.0.1.3.224.1.1.8	560.16	602.688
NVIDIA H200	input_gradient	bfloat16	highest	nhwc	nhwc	128 512 256 1 4 8 4 2 1 1 4 8 4 2 1 1	boxes 1.1.0.1.0.208.1.1.0	23.523	25.661
NVIDIA H200	input_gradient	bfloat16	highest	nhwc	nhwc	16 32 64 1 64 318 3 5 1 2 128 638 3 5 1 2	boxes 1.1.0.1.0.208.1.1.0	46.88	50.419
NVIDIA H200	input_gradient	bfloat16	highest	nhwc	nhwc	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	boxes 2.2.1.1.0.256.1.0.0	342.976	359.872
NVIDIA H200	input_gradient	bfloat16	highest	nhwc	nhwc	8 32 32 1 512 514 3 1 0 1 1024 1026 3 1 0 1	boxes 2.2.1.1.1.256.1.1.0	195.68	231.936
NVIDIA H200	input_gradient	float16	highest	nchw	nchw	128 512 256 1 4 8 4 2 1 1 4 8 4 2 1 1	boxes 1.1.1.1.3.160.1.1.0	31.772	34.252
NVIDIA H200	input_gradient	float16	highest	nchw	nchw	128 64 64 1 7 14 3 2 1 1 7 14 3 2 1 1	boxes 1.1.0.1.2.64.1.1.0	11.829	12.406
NVIDIA H200	input_gradient	float16	highest	nchw	nchw	8 32 32 1 512 514 3 1 0 1 1024 1026 3 1 0 1	boxes 2.2.1.1.5.192.1.0.0	393.472	419.136
NVIDIA H200	input_gradient	float16	highest	nchw	nchw	8 64 64 1 1024 1026 3 1 0 1 1024 1026 3 1 0 1	gathered 1.1.0.1.3.256.1.1.12	1458.208	1708.032
NVIDIA H200	input_gradient	float16	highest	nchw	nchw	8 64 64 1 512 514 3 1 0 1 512 518 7 1 0 1	gathered 1.1.0.1.3.224.1.1.8	576.288	619.744
NVIDIA H200	input_gradient	float16	highest	nhwc	nhwc	128 512 256 1 4 8 4 2 1 1 4 8 4 2 1 1	boxes 1.1.0.1.0.208.1.1.0	23.721	25.766
NVIDIA H200	input_gradient	float16	highest	nhwc	nhwc	16 32 64 1 64 318 3 5 1 2 128 638 3 5 1 2	boxes 1.1.0.1.1.208.1.1.0	46.928	50.912
NVIDIA H200	input_gradient	float16	highest	nhwc	nhwc	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	boxes 2.2.1.1.1.256.1.0.0	345.984	364.032
NVIDIA H200	input_gradient	float16	highest	nhwc	nhwc	8 32 32 1 512 514 3 1 0 1 1024 1026 3 1 0 1	boxes 2.2.1.1.1.256.1.1.0	200.8	234.144
NVIDIA H200	input_gradient	float32	high	nchw	nchw	128 512 256 1 4 8 4 2 1 1 4 8 4 2 1 1	halves 1.1.1.1.3.160.1.1.0	37.938	40.987
NVIDIA H200	input_gradient	float32	high	nhwc	nhwc	128 256 128 1 8 16 4 2 1 1 8 16 4 2 1 1	boxes 1.1.0.1.0.160.1.0.0	31.244	33.632
NVIDIA H200	input_gradient	float32	high	nhwc	nhwc	16 32 64 1 64 318 3 5 1 2 128 638 3 5 1 2	boxes 1.1.0.1.0.256.1.1.0	85.803	92.416
NVIDIA H200	input_gradient	float32	high	nhwc	nhwc	8 64 64 1 1024 1026 3 1 0 1 1024 1026 3 1 0 1	boxes 1.1.0.1.0.256.1.1.0	1785.408	1901.024
NVIDIA H200	input_gradient	float32	highest	nchw	nchw	128 64 32 1 14 28 3 2 1 1 14 28 3 2 1 1	halves 1.1.0.1.3.128.1.0.0	25.808	29.444
NVIDIA H200	input_gradient	float32	highest	nchw	nchw	128 64 64 1 7 14 3 2 1 1 7 14 3 2 1 1	halves	19.456	21.165
NVIDIA H200	input_gradient	float32	highest	nchw	nchw	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	gathered 2.2.0.1.5.128.1.0.4	1154.4	1212.864
NVIDIA H200	weight_gradient	bfloat16	highest	nchw	nchw	128 128 64 1 16 32 4 2 1 1 16 32 4 2 1 1	boxes 1.1.1.1.8.16.16.0	39.369	40.782
NVIDIA H200	weight_gradient	bfloat16	highest	nchw	nchw	128 64 64 1 7 14 3 2 1 1 7 14 3 2 1 1	boxes	13.845	14.639
NVIDIA H200	weight_gradient	bfloat16	highest	nchw	nchw	32 512 256 1 64 128 4 2 1 1 64 128 4 2 1 1	boxes 1.1.2.1.16.16.16.0	863.744	893.92
NVIDIA H200	weight_gradient	bfloat16	highest	nhwc	nhwc	128 128 64 1 16 32 4 2 1 1 16 32 4 2 1 1	boxes 1.1.1.1.16.16.17.0	22.28	23.252
NVIDIA H200	weight_gradient	bfloat16	highest	nhwc	nhwc	128 64 32 1 14 28 3 2 1 1 14 28 3 2 1 1	boxes 1.1.2.1.7.16.16.0	11.669	14.31
NVIDIA H200	weight_gradient	bfloat16	highest	nhwc	nhwc	128 64 64 1 7 14 3 2 1 1 7 14 3 2 1 1	boxes 1.1.1.3.7.7.8.0	9.371	11.51
NVIDIA H200	weight_gradient	bfloat16	highest	nhwc	nhwc	16 32 64 1 64 318 3 5 1 2 128 638 3 5 1 2	boxes 1.1.1.1.2.128.128.0	45.968	53.53
NVIDIA H200	weight_gradient	bfloat16	highest	nhwc	nhwc	32 512 256 1 64 128 4 2 1 1 64 128 4 2 1 1	boxes 1.1.2.1.16.16.16.0	657.376	688.832
NVIDIA H200	weight_gradient	bfloat16	highest	nhwc	nhwc	64 64 128 1 128 130 3 1 0 1 256 260 5 1 0 1	boxes 1.1.2.1.16.16.16.0	635.584	697.44
NVIDIA H200	weight_gradient	bfloat16	highest	nhwc	nhwc	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	boxes 2.2.2.1.20.16.16.0	334.08	377.12
NVIDIA H200	weight_gradient	float16	highest	nchw	nchw	128 64 64 1 7 14 3 2 1 1 7 14 3 2 1 1	boxes	13.881	14.611
NVIDIA H200	weight_gradient	float16	highest	nchw	nchw	32 512 256 1 64 128 4 2 1 1 64 128 4 2 1 1	boxes 1.1.2.1.16.16.16.0	886.208	921.984
NVIDIA H200	weight_gradient	float16	highest	nhwc	nhwc	128 128 64 1 16 32 4 2 1 1 16 32 4 2 1 1	boxes 1.1.1.1.16.16.17.0	22.459	23.444
NVIDIA H200	weight_gradient	float16	highest	nhwc	nhwc	128 64 32 1 14 28 3 2 1 1 14 28 3 2 1 1	boxes 1.1.2.1.7.16.16.0	11.592	14.312
NVIDIA H200	weight_gradient	float16	highest	nhwc	nhwc	128 64 64 1 7 14 3 2 1 1 7 14 3 2 1 1	boxes 1.1.1.3.7.7.8.0	9.378	11.518
NVIDIA H200	weight_gradient	float16	highest	nhwc	nhwc	16 32 64 1 64 318 3 5 1 2 128 638 3 5 1 2	boxes 1.1.1.1.2.128.128.0	45.792	53.734
NVIDIA H200	weight_gradient	float16	highest	nhwc	nhwc	32 512 256 1 64 128 4 2 1 1 64 128 4 2 1 1	boxes 1.1.2.1.16.16.16.0	682.592	712.032
NVIDIA H200	weight_gradient	float16	highest	nhwc	nhwc	64 64 128 1 128 130 3 1 0 1 256 260 5 1 0 1	boxes 1.1.2.1.16.16.16.0	656.64	724.96
NVIDIA H200	weight_gradient	float16	highest	nhwc	nhwc	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	boxes 2.2.2.1.20.16.16.0	342.4	388.256
NVIDIA H200	weight_gradient	float32	high	nchw	nchw	64 64 128 1 128 130 3 1 0 1 256 260 5 1 0 1	halves 1.1.2.1.16.16.16.0	1309.024	1368.96
NVIDIA H200	weight_gradient	float32	high	nchw	nchw	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	halves 2.2.2.1.12.16.16.0	757.984	808.8
NVIDIA H200	weight_gradient	float32	high	nhwc	nhwc	64 64 128 1 128 130 3 1 0 1 256 260 5 1 0 1	halves 1.1.2.1.16.16.16.0	1289.824	1348.544
NVIDIA H200	weight_gradient	float32	high	nhwc	nhwc	8 32 32 1 512 512 3 1 1 1 1024 1024 7 1 3 1	halves 2.2.2.1.12.16.16.0	745.44	797.824
NVIDIA H200	weight_gradient	float32	highest	nchw	nchw	128 128 64 1 16 32 4 2 1 1 16 32 4 2 1 1	halves 1.1.1.1.8.16.16.0	81.408	84.597
NVIDIA H200	weight_gradient	float32	highest	nchw	nchw	32 512 256 1 64 128 4 2 1 1 64 128 4 2 1 1	halves 1.1.2.1.1.64.64.0	2460.768	2795.424
NVIDIA H200	weight_gradient	float32	highest	nchw	nchw	8 32 32 1 512 514 3 1 0 1 1024 1026 3 1 0 1	halves 2.2.1.1.12.16.16.0	1032.896	1140.64
NVIDIA H200	weight_gradient	float32	highest	nchw	nchw	8 64 64 1 1024 1026 3 1 0 1 1024 1026 3 1 0 1	halves 1.1.1.1.8.16.16.0	4888.288	5366.528
NVIDIA H200	weight_gradient	float32	highest	nchw	nchw	8 64 64 1 512 514 3 1 0 1 512 518 7 1 0 1	halves 2.2.2.1.7.16.16.0	2110.944	2410.112
)";

}  // namespace tapedeck
