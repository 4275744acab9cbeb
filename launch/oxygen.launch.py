"""The inference node alone, beside the drivers and controllers of your robot."""
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue
from launch_ros.substitutions import FindPackageShare

# Arguments that, when given, take the place of a parameter in params_file: argument -> (parameter, what it is).
OVERRIDES = {
    'contract': ('contract', 'YAML file that ties the checkpoint to the robot: cameras, joints, units, limits'),
    'checkpoint': ('checkpoint',
                   'folder of the checkpoint, "tabletop", or "random:tiny" | "random:small" | "random:pi05"'),
    'device': ('engine.device', 'where the model runs: "cpu", "cuda", "cuda:1"'),
}
# launch refuses any other word than WORDS for these: "yes" must not silently mean false.
FLAGS = {
    'autostart': 'true: configure and activate without being asked; false: wait for lifecycle transitions',
    'use_sim_time': 'true: take the time from /clock',
}
WORDS = ['', 'true', 'false', 'True', 'False']


def start_node(context):
    def given(name):
        return LaunchConfiguration(name).perform(context)

    overrides = {parameter: ParameterValue(given(name), value_type=str)  # a folder may look like a number
                 for name, (parameter, _) in OVERRIDES.items() if given(name)}
    overrides |= {name: given(name).lower() == 'true' for name in FLAGS if given(name)}
    return [Node(
        package='oxygen_ros', executable='oxygen_node', name='oxygen',
        namespace=LaunchConfiguration('namespace'),
        parameters=[LaunchConfiguration('params_file'), *filter(None, [overrides])],
        remappings=[('actions', LaunchConfiguration('actions'))],
        arguments=['--ros-args', '--log-level', LaunchConfiguration('log_level')],
        output='screen', sigterm_timeout='10')]


def generate_launch_description():
    params = PathJoinSubstitution([FindPackageShare('oxygen_ros'), 'config', 'oxygen.yaml'])
    return LaunchDescription([
        DeclareLaunchArgument('params_file', default_value=params, description='YAML file with the parameters'),
        DeclareLaunchArgument('namespace', default_value='oxygen', description='namespace of all topics and services'),
        DeclareLaunchArgument('log_level', default_value='info',
                              description='debug | info | warn | error | fatal'),
        DeclareLaunchArgument('actions', default_value='actions',
                              description='topic of the trajectories: that of your controller'),
        *(DeclareLaunchArgument(name, default_value='', description=f'{what}; empty: as in params_file')
          for name, (_, what) in OVERRIDES.items()),
        *(DeclareLaunchArgument(name, default_value='', choices=WORDS, description=f'{what}; empty: as in params_file')
          for name, what in FLAGS.items()),
        OpaqueFunction(function=start_node),
    ])
